"""CANAL: hospitals share what their segmentation models learned, without exposing a patient."""

__version__ = "0.1.0"
