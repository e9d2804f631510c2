"""Diagnosis of a slow run from the files that it has written: its causes, their fixes, and the gains to expect."""

from segtrain.diagnose.judge import diagnose as diagnose
from segtrain.diagnose.judge import judge as judge
from segtrain.diagnose.verdict import Diagnosis as Diagnosis
from segtrain.diagnose.verdict import Verdict as Verdict
