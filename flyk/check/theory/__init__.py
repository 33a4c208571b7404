"""What the papers claim, as numbers: each statement's expected value beside the one that flyk gives."""

from flyk.check.theory import fly_lora, orthogonality, rear, te2
from flyk.check.theory._statement import Measured, Statement

STATEMENTS = (*fly_lora.STATEMENTS, *orthogonality.STATEMENTS, *rear.STATEMENTS, *te2.STATEMENTS)

__all__ = ["STATEMENTS", "Measured", "Statement"]
