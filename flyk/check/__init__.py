"""Every operator on the backend that serves it, held against the plain reference in float64."""

from flyk.check.cases import Case
from flyk.check.grids import SUBJECTS, arguments_of, cases_of
from flyk.check.run import Result, check_case, serving

__all__ = ["SUBJECTS", "Case", "Result", "arguments_of", "cases_of", "check_case", "serving"]
