"""FlyLoRA as a method of PEFT: importing this module registers it, under the type FLYLORA.

    import flyk.adapters.peft
    from peft import get_peft_model

    model = get_peft_model(model, flyk.adapters.peft.FlyLoraConfig(r=32, k=8, target_modules=["q_proj", "v_proj"]))

Import it also before an adapter of this type is loaded: PEFT has no other way to learn of it.
"""

from flyk._packages import need
from flyk.adapters.peft._type import FLYLORA
from flyk.adapters.peft.config import FlyLoraConfig
from flyk.adapters.peft.convert import convert_reference_checkpoint
from flyk.adapters.peft.layer import FlyLoraLayer
from flyk.adapters.peft.model import FlyLoraModel
from flyk.adapters.peft.swap import swap_adapter_

need("peft.utils", "pip install 'flyk[peft]'").register_peft_method(
    name=FLYLORA.lower(), config_cls=FlyLoraConfig, model_cls=FlyLoraModel, prefix="flylora_", is_mixed_compatible=False
)

__all__ = ["FlyLoraConfig", "FlyLoraLayer", "FlyLoraModel", "convert_reference_checkpoint", "swap_adapter_"]
