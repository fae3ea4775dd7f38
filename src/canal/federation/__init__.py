"""The same release across hospitals, in the order in which it is made, each on its own page.

================  ==============================================================================
`settings`        what a site is and allows, what an aggregator orders: a TOML file each
`identity`        a certificate that the others know beforehand
`kit`             what each party gets to take part, made safe
`provision`       making kits for everyone
`message`         values and arrays as bytes that prove themselves whole
`transport`       carries messages, and promises nothing else
`contract`        what all agree on before a release, roster included
`masks`           streams that cancel in the sum of all, and in nothing less
`journal`         what a site agreed to and said, word for word
`introduction`    the handshake: a site's entry of the roster, what all have in common
`session`         a site's responses within one session, whatever the mechanism
`payment`         the site's own ledger, charged first
`cohort`          what a site has; training
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
