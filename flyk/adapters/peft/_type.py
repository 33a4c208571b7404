"""FLYLORA as a member of PEFT's PeftType: PEFT registers no method whose name is not one."""

from __future__ import annotations

from typing import Any

from peft.utils import PeftType


def _member() -> PeftType:
    if "FLYLORA" not in PeftType.__members__:
        kind: Any = PeftType
        member = str.__new__(kind, "FLYLORA")
        member._name_ = member._value_ = "FLYLORA"
        kind._member_map_["FLYLORA"] = kind._value2member_map_["FLYLORA"] = member
        kind._member_names_.append("FLYLORA")
    return PeftType("FLYLORA")


FLYLORA = _member()
