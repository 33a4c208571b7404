"""`flyk demo lora`: LoRA, LoRA-FA and FlyLoRA on a small language model, each task alone and all merged."""
