"""FLYLORA as a member of PEFT's PeftType: PEFT registers no method whose name is not one."""

from __future__ import annotations

from typing import Any

from flyk._packages import need

PeftType: Any = need("peft.utils", "pip install 'flyk[peft]'").PeftType


def _member() -> Any:
    if "FLYLORA" not in PeftType.__members__:
        member = str.__new__(PeftType, "FLYLORA")
        member._name_ = member._value_ = "FLYLORA"
        PeftType._member_map_["FLYLORA"] = PeftType._value2member_map_["FLYLORA"] = member
        PeftType._member_names_.append("FLYLORA")
    return PeftType("FLYLORA")


FLYLORA = _member()
