r"""Three make-believe hospitals that share one task: outline the lesion.

For demonstrations and tests where no patient's image may be used. Each hospital sees its lesions
through another instrument, so that a model trained in one of them does not simply work in the next:

============  ======================================  ==========================================
hospital      the lesion                              what only resembles it
============  ======================================  ==========================================
dermoscopy    pigment in a fine pattern, under hair   flat or blotchy stains of that pigment
endoscopy     a dome with pits, under glare           smooth domes of the same colour
ultrasound    fine echoes in a mass, under speckle    cysts and muscle that return as much
============  ======================================  ==========================================

A lesion is told from its decoys by what is inside, which is fine and alike in all directions, not
by colour; that is what makes forty images too few to learn it from.

Guarantees:
    Image i of a hospital depends on the seed, the size and i, and on nothing else: not on how many
    were asked for, nor on whether the other hospitals were asked for as well. Grey is the luminance
    of the colour image. No mask is empty.
"""

from canal.data.synthetic.drawing import HOSPITALS, MOST_VIEWS, SyntheticSet, generate
from canal.data.synthetic.folder import write

__all__ = ["HOSPITALS", "MOST_VIEWS", "SyntheticSet", "generate", "write"]
