"""The same release across hospitals, in the order in which it is made, each on its own page.

================  ==============================================================================
`settings`        what a site is and allows, what an aggregator orders: a TOML file each
`identity`        a certificate that the others know beforehand
`kit`             what each party gets to join, made safe
`provision`       making kits for everyone
`message`         values and arrays as bytes that prove themselves whole
`transport`       carries messages, and promises nothing else
`terms`           what all agree on before a release, roster included
`masks`           streams that cancel in the sum of all, and in nothing less
`journal`         what a site agreed to and said, word for word
`questions`       what a site is asked: the plan as it derives it, images as they came
`payment`         the site's own ledger, charged first
`cohort`          training at a site
`contribution`    what a site adds to the sums
`site`            answers an aggregator that it does not trust
`history`         what a site took part in
`remote`          all sites, as an aggregator sees them
`aggregate`       an order, from its initialisation to the published folder
`rehearsal`       hospitals as folders on one machine
`job`             an order as a job of FLARE: simulated, submitted, watched
`console`         an admin's words to FLARE's server
`flare`           our two classes inside of FLARE
`doorkeeper`      FLARE's client, with the doors shut that no job needs
================  ==============================================================================
"""
