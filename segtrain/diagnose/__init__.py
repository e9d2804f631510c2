"""Why is a run slow, what would cure it, and how much would that bring? From what it has written down, and nothing else."""

from segtrain.diagnose.judge import diagnose as diagnose
from segtrain.diagnose.judge import judge as judge
from segtrain.diagnose.verdict import Diagnosis as Diagnosis
from segtrain.diagnose.verdict import Verdict as Verdict
