"""Eight broken commits to find: each runs for real, and each is wrong in a way that serving engines have been wrong."""

from .diagnosis import CAUSES, diagnose
from .patients import Patient, patient

__all__ = ["CAUSES", "Patient", "diagnose", "patient"]
