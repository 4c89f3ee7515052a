"""One `score` for GEPA runs outside DSPy: `gepa.optimize` and `optimize_anything`.

Everything for them is imported from here. Built around gepa 0.1.4.
"""

from .gepa_adapter import GepaAdapter, as_gepa_adapter
from .gepa_cases import GepaDataset, as_gepa_dataset
from .gepa_checks import check_gepa_run
from .gepa_closing import ClosingCallback
from .gepa_evaluator import GepaEvaluator, as_gepa_evaluator
from .gepa_folder import check_run_dir
from .gepa_optimize import OptimizedArtifact, optimize_artifact
from .gepa_reflection import ReflectionLM, as_reflection_lm
from .gepa_rollouts import Trajectory

__all__ = [
    "ClosingCallback",
    "GepaAdapter",
    "GepaDataset",
    "GepaEvaluator",
    "OptimizedArtifact",
    "ReflectionLM",
    "Trajectory",
    "as_gepa_adapter",
    "as_gepa_dataset",
    "as_gepa_evaluator",
    "as_reflection_lm",
    "check_gepa_run",
    "check_run_dir",
    "optimize_artifact",
]
