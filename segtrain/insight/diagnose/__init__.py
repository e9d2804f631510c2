"""Diagnosis of a slow run from the files that it has written: its causes, their fixes, and the
gains to expect.
"""

from segtrain.insight.diagnose.judge import diagnose as diagnose
from segtrain.insight.diagnose.judge import judge as judge
from segtrain.insight.diagnose.verdict import Diagnosis as Diagnosis
from segtrain.insight.diagnose.verdict import Verdict as Verdict
