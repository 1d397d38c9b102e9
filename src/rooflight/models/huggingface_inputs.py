"""The inputs of one step of a Hugging Face model: what its forward takes, in the sizes that its configuration names.

Text with images gets both, and as many image tokens in the sequence as its vision tower gives; so does speech. Where
the sizes are not known here, or the model reads them from values of its inputs, it is traced on text alone; the trace
then says which parameters were never used.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from rooflight.errors import BadInput, one_line
from rooflight.ledger import Note
from rooflight.models import inputs
from rooflight.models.workload import ModelRequest, Task

_IMAGE_SIDE, _DETECTION_SIDE, _SEGMENTED_SIDE = 224, 640, 1024
"""Where the configuration names no size of images."""
_SAMPLES = 160_000
"""Ten seconds of speech at 16 kHz."""
_PATCHES = 2048
"""As many as Pix2Struct's processor makes of an image."""
_FRAMES = 1000
"""The same as spectra, one each hundredth of a second."""


@dataclass(frozen=True)
class StepInputs:
    kwargs: dict[str, Any]
    sequence: int | None = None
    past: int | None = None
    notes: tuple[Note, ...] = ()


def step_inputs(model: nn.Module, task: Task, *, request: ModelRequest, usual_sequence: int) -> StepInputs:
    """What `model` is called with in the step of `request`; `usual_sequence`: tokens where nobody says how many."""
    return _Maker(model, task, request, usual_sequence).made()


class _Maker:
    """One model and one request; a method for each kind of input."""

    def __init__(self, model: nn.Module, task: Task, request: ModelRequest, usual_sequence: int) -> None:
        self.model, self.task, self.request, self.usual = model, task, request, usual_sequence
        config: Any = model.config
        self.config = config
        self.text = _first(config, "text_encoder") or config.get_text_config()
        self.device = next(model.parameters()).device
        self.names = inspect.signature(model.forward).parameters
        self.main = str(getattr(model, "main_input_name", "input_ids"))
        if self.main not in self.names or (self.main == "inputs" and "input_values" in self.names):
            self.main = next((name for name in _MAINS if name in self.names), self.main)

    def made(self) -> StepInputs:
        reads = self.main == "input_ids" or (self.task == "language-model" and "input_ids" in self.names)
        main = self._text() if reads else self._perceived()
        return StepInputs({**main.kwargs, **self._others(main)}, main.sequence, main.past, main.notes)

    # --- text, and images within it ---

    def _text(self) -> StepInputs:
        sequence, past = self._lengths()
        if past is not None:
            kwargs = {"input_ids": self.tokens(1), "past_key_values": self._prefilled(past)}
            return StepInputs(kwargs, sequence, past)
        shape = self.request.input_shape
        sees = "pixel_values" in self.names
        if shape is not None and (not sees if shape.kind == "float" else len(shape.dims) > 1):
            raise BadInput(
                "wrong-input-kind", f"--input={shape}: {self.request.spec} takes tokens; set their number with --seq"
            )
        if sees and not self._reads_pages():
            return self._image_in_text(sequence)
        ids = self.tokens(sequence, *self._codes(self.config))
        return StepInputs({"input_ids": ids}, sequence, notes=(_TEXT_ALONE,) if sees else ())

    def _reads_pages(self) -> bool:
        """UDOP looks up the part of the page that a word stands on, by the values of its box."""
        return "visual_bbox" in self.names

    def _lengths(self) -> tuple[int, int | None]:
        """The tokens of this step, and those in the cache."""
        limit = _first(self.text, "max_position_embeddings", "n_positions")
        limit = limit if isinstance(limit, int) and limit > 0 else None
        if isinstance(pad := getattr(self.config, "pad_token_id", None), int) and _counts_from_padding(self.model):
            limit = limit and limit - pad - 1
        shape = self.request.input_shape
        given = self.request.seq or (shape.dims[0] if shape is not None and shape.kind == "int" else None)
        if self.request.step == "decode":
            self._check_decodes()
            past = self.request.past or given or min(self.usual, (limit or self.usual + 1) - 1)
            self._check_limit(past + 1, limit)
            return 1, past
        usual = min(self.usual, limit or self.usual)
        if self.config.model_type == "reformer" and self.request.step == "train":  # takes no other length there
            usual = math.prod(self.config.axial_pos_shape)
        wanted = given or usual
        self._check_limit(wanted, limit)
        return wanted, None

    def _check_decodes(self) -> None:
        if self.task != "language-model" or self.config.is_encoder_decoder:
            raise BadInput(
                "cannot-decode", f"{self.request.spec} cannot decode: it is no causal language model; use --step=infer"
            )

    def _check_limit(self, wanted: int, limit: int | None) -> None:
        if limit is not None and wanted > limit:
            spec = self.request.spec
            raise BadInput(
                "sequence-too-long", f"{spec} has {limit} positions, this step needs {wanted}; shorten --seq or --past"
            )

    def tokens(self, *sizes: int) -> Tensor:
        ids = inputs.tokens((self.request.batch, *sizes), self.model, device=self.device)
        known = getattr(self.text, "vocab_size", None)  # the model's first table may be of places in an image
        return ids % known if isinstance(known, int) and known > 0 else ids

    def _codes(self, config: Any) -> tuple[int, ...]:
        """Models that speak or listen in codes have several at each place of the sequence."""
        kind = getattr(config, "model_type", "")
        if kind == "kyutai_speech_to_text":  # and one of text
            return (config.num_codebooks + 1,)
        return (config.num_channels,) if kind == "dia_decoder" else ()

    @torch.no_grad()
    def _prefilled(self, past: int) -> Any:
        """The cache after `past` tokens, made by the model itself: only it knows the shapes."""
        spec = self.request.spec
        try:
            cache = getattr(self.model(input_ids=self.tokens(past), use_cache=True), "past_key_values", None)
        except Exception as error:
            raise BadInput(
                "cannot-decode",
                f"{spec} fails on the prompt before the decoding step: {one_line(error)}; try --step=infer",
            ) from error
        if cache is None:
            raise BadInput(
                "cannot-decode", f"{spec} keeps no key-value cache, so it cannot decode here; use --step=infer"
            )
        return cache

    def _image_in_text(self, sequence: int) -> StepInputs:
        """Images beside the text, or as tokens of it; text alone where that takes more than is known here."""
        kwargs = self._images()
        marker = _first(self.config, "image_token_id", "image_token_index", "video_token_index")
        if marker is None or "cross_attention_mask" in self.names:  # two towers, or cross-attention to the image
            return StepInputs({"input_ids": self.tokens(sequence), **kwargs}, sequence)
        try:
            number = self._image_tokens(kwargs)
        except Exception:  # it wants sizes or tiles as values, which tensors without data have not
            return StepInputs({"input_ids": self.tokens(sequence)}, sequence, notes=(_TEXT_ALONE,))
        ids = self._readable_tokens(number + sequence)
        ids[:, :number] = marker
        ids[:, number:].masked_fill_(ids[:, number:] == marker, 0)
        if "token_type_ids" in self.names:  # these tell images from text where the mask does
            kwargs["token_type_ids"] = torch.zeros_like(ids, device=self.device)
        if "mm_token_type_ids" in self.names and "image_grid_thw" in kwargs:
            # Of time, height and width, as `generate` gives them; the model would find them by looking at every token.
            kwargs["position_ids"] = torch.zeros(3, *ids.shape, device=self.device).long()
        note = Note("image-tokens", f"an image is {number} tokens of the sequence, the text {sequence}")
        return StepInputs({"input_ids": ids, **kwargs}, number + sequence, notes=(note,))

    def _readable_tokens(self, length: int) -> Tensor:
        """Some models look for the places of an image: without data, tokens that mean nothing else, on the host."""
        if self.device.type != "meta":
            return self.tokens(length)
        fields = {**self.config.to_dict(), **self.text.to_dict()}
        special = [value for name, value in fields.items() if "token" in name]
        special += [one for value in special if isinstance(value, list) for one in value]
        plain = next(number for number in count() if number not in special)
        return torch.full((self.request.batch, length), plain)

    def _images(self) -> dict[str, Tensor]:
        """An image for each text, and what tells its size: the model reads that."""
        if self.config.model_type in _PATCHED_TYPES:  # cut into patches by the processor, those of all images in a row
            vision, merged = self.config.vision_config, self._merged()
            rows, columns = (side // (vision.patch_size * merged) * merged for side in self._image_size(vision))
            values = self._channels(vision) * (_first(vision, "temporal_patch_size") or 1) * vision.patch_size**2
            pixels = self.floats(rows * columns, values).flatten(0, 1)
            return {"pixel_values": pixels, "image_grid_thw": self._sizes(1, rows, columns)}
        pixels = self.pixels()
        if "aspect_ratio_ids" in self.names:  # of Mllama: one image of as many tiles as there can be
            tiles = self.config.vision_config.max_num_tiles
            ones = torch.ones(self.request.batch, 1, tiles, device=self.device).long()
            pixels = self.floats(1, tiles, *pixels.shape[1:])
            return {"pixel_values": pixels, "aspect_ratio_ids": ones[..., 0], "aspect_ratio_mask": ones}
        if "image_sizes" in self._asked_for():
            return {"pixel_values": pixels, "image_sizes": self._sizes(*pixels.shape[-2:])}
        return {"pixel_values": pixels}

    def _sizes(self, *sizes: int) -> Tensor:
        """Of each image; on the host where there is no data elsewhere."""
        return torch.tensor([sizes] * self.request.batch, device="cpu" if self.device.type == "meta" else self.device)

    def _seeing(self) -> Any:
        """The part of the model that knows its vision tower."""
        model: Any = self.model
        return model if hasattr(model, "get_image_features") else model.base_model

    def _asked_for(self) -> list[str]:
        """What the vision tower cannot do without."""
        ask = getattr(self._seeing(), "get_image_features", None)
        parameters = inspect.signature(ask).parameters if ask is not None else {}
        return [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]

    def _merged(self) -> int:
        """Patches along a side that become one token."""
        return int(_first(self.config.vision_config, "spatial_merge_size", "merge_size") or 1)

    @torch.no_grad()
    def _image_tokens(self, images: dict[str, Tensor]) -> int:
        """The tokens an image becomes: configured, or asked of the vision tower."""
        if (grid := images.get("image_grid_thw")) is not None:
            return int(grid[0].prod()) // self._merged() ** 2
        pixels = images["pixel_values"]
        if (queries := getattr(self.config, "num_query_tokens", None)) is not None:  # of each frame
            return int(queries) * (pixels.shape[1] if pixels.dim() == 5 else 1)
        if (latents := getattr(_first(self.config, "perceiver_config"), "resampler_n_latents", None)) is not None:
            return int(latents)
        if isinstance(joined := getattr(self.config, "scale_factor", None), int):  # of Idefics3, along a side
            return math.prod(pixels.shape[-2:]) // int(self.config.vision_config.patch_size * joined) ** 2
        features = self._seeing().get_image_features(**images)
        features = getattr(features, "pooler_output", features)
        parts = features if isinstance(features, (tuple, list)) else [features]
        return int(sum(part.numel() // part.shape[-1] for part in parts) // self.request.batch)

    # --- images, video and sound ---

    def _perceived(self) -> StepInputs:
        if self.request.step == "decode":
            self._check_decodes()
        shape = self.request.input_shape
        if self.main.startswith("pixel_values"):
            value = self.pixels()
        elif shape is not None:
            value = inputs.from_shape(shape, self.model, request=self.request, device=self.device)
        elif self.main in ("input_values", "input_features"):
            value = self.sound()
        elif self.main == "inputs":  # Perceiver takes bytes of text here
            value = self.tokens(self.usual)
        elif self.main == "flattened_patches":  # of Pix2Struct: row and column, and the pixels of a patch
            vision = self.config.vision_config
            value = self.floats(_PATCHES, 2 + vision.patch_embed_hidden_size)
        else:
            spec = self.request.spec
            raise BadInput("missing-input", f"{spec} takes {self.main}; give its shape, as in --input=80x3000")
        return StepInputs({self.main: value})

    def pixels(self) -> Tensor:
        """Images of the size asked for or configured; frames of them where the model sees videos."""
        if self.request.input_shape is not None and self.request.input_shape.kind == "float":
            return self.floats(*self.request.input_shape.dims)
        vision: Any = _first(self.config, "vision_config", "encoder", "backbone_config") or self.config
        height, width = self._image_size(vision)
        if "spatial_shapes" in self.names:  # cut into patches by the processor
            return self.floats(math.isqrt(vision.num_patches) ** 2, vision.num_channels * vision.patch_size**2)
        shape = (self._channels(vision), height, width)
        frames = None
        if self._sees_videos():
            frames = _first(self.config, "num_frames", "frames_per_clip") or _first(vision, "num_frames")
        images = "idefics" in self.config.model_type or self.config.model_type == "smolvlm"
        return self.floats(*(() if frames is None else (int(frames),)), *((1,) if images else ()), *shape)

    def _image_size(self, vision: Any) -> tuple[int, int]:
        given = self.request.input_shape
        if given is not None and given.kind == "float" and len(given.dims) == 3:
            return given.dims[1], given.dims[2]
        side = _first(self.config, "image_size") or _first(vision, "image_size") or self._usual_side()
        height, width = side if isinstance(side, (tuple, list)) else (side, side)
        return int(height), int(width)

    def _channels(self, vision: Any) -> int:
        return int(_first(vision, "num_channels", "in_channels", "in_chans") or 3)

    def _usual_side(self) -> int:
        if "input_points" in self.names:
            return _SEGMENTED_SIDE
        return _DETECTION_SIDE if "ObjectDetection" in type(self.model).__name__ else _IMAGE_SIDE

    def _sees_videos(self) -> bool:
        return "video" in self.main or self.config.model_type in _VIDEO_TYPES

    def sound(self) -> Tensor:
        """Ten seconds of it, or what the positions of the encoder are for."""
        spectra = self.main == "input_features" or self.config.model_type == "audio-spectrogram-transformer"
        if not spectra:
            return self.floats(_SAMPLES)
        hears: Any = _first(self.config, "audio_config", "encoder_config", "speech_encoder") or self.config
        bins = _first(hears, *_SPECTRA)
        if bins is None:
            raise BadInput(
                "missing-input", f"{self.request.spec} takes {self.main}; give its shape, as in --input=80x3000"
            )
        if self.config.model_type == "whisper":  # two convolutions, one of stride 2, come first
            return self.floats(bins, 2 * self.config.max_source_positions)
        return self.floats(getattr(self.config, "max_length", None) or _FRAMES, bins)

    def floats(self, *sizes: int) -> Tensor:
        return inputs.floats(sizes, self.request, device=self.device)

    # --- what goes with them ---

    def _others(self, main: StepInputs) -> dict[str, Any]:
        """Tokens of a decoder, points of a mask, and what else a forward cannot do without."""
        sequence = main.sequence or self.usual
        found: dict[str, Any] = {}
        if self.config.is_encoder_decoder and "decoder_input_ids" in self.names:
            length = min(sequence, self._decoder_limit() or sequence)
            found["decoder_input_ids"] = self._decoder_tokens(length)
        if "input_points" in self.names:
            found["input_points"] = self.floats(1, 1, 2)
        if "image_attention_mask" in self.names and "pixel_values" in main.kwargs:  # every word may look at the image
            found["image_attention_mask"] = torch.ones(self.request.batch, sequence, 1, device=self.device).long()
        if "aspect_ratio_ids" in main.kwargs:
            shape = (self.request.batch, sequence, *main.kwargs["pixel_values"].shape[1:3])
            found["cross_attention_mask"] = torch.ones(shape, device=self.device).long()
        if "spatial_shapes" in self.names:  # of SigLIP 2, in patches: read by the model
            side = math.isqrt(self.config.vision_config.num_patches)
            found["spatial_shapes"] = torch.tensor([[side, side]] * self.request.batch)
            found["pixel_attention_mask"] = torch.ones(self.request.batch, side * side, device=self.device).long()
        if self.config.model_type == "voxtral_realtime":  # hears so much for each token
            hears = self.config.audio_config
            found["input_features"] = self.floats(hears.num_mel_bins, sequence * self.config.audio_length_per_tok)
        if self._reads_pages():
            found["bbox"] = self.floats(sequence, 4)
        for name, parameter in self.names.items():
            needed = parameter.default is inspect.Parameter.empty and name not in main.kwargs and name not in found
            if needed and name.endswith("input_ids"):
                found[name] = self.tokens(main.sequence or self._lengths()[0])
            elif needed and name.startswith("pixel_values"):
                found[name] = self.pixels()
        if self.request.step != "train" and self._keeps_cache():
            # Without a cache, transformers reads values of the mask, which tensors without data do not have.
            found["use_cache"] = True
        return found

    def _decoder_tokens(self, length: int) -> Tensor:
        if self.config.model_type.startswith(
            "musicgen"
        ):  # its codes stand in the batch, and are others than the text's
            codes = self.config.decoder
            sizes = (self.request.batch * codes.num_codebooks, length)
            return torch.randint(0, codes.vocab_size, sizes, device=self.device)
        return self.tokens(length, *self._codes(getattr(self.config, "decoder_config", None)))

    def _keeps_cache(self) -> bool:
        generates = self.task == "language-model" and not self.config.is_encoder_decoder
        return generates and "use_cache" in self.names and hasattr(self.text, "use_cache")

    def _decoder_limit(self) -> int | None:
        limit = _first(self.config, "max_target_positions", "max_position_embeddings")
        return limit if isinstance(limit, int) and limit > 0 else None


_TEXT_ALONE = Note(
    "text-alone",
    "the step takes text alone: what goes with an image of this model is not known here; for both, trace a module of "
    "yours with its processor's output",
)
_MAINS = ("input_ids", "pixel_values", "pixel_values_videos", "input_values", "input_features")
_PATCHED_TYPES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "glm4v",
    "glm4v_moe",
    "glm46v",
    "glm_ocr",
    "exaone4_5",
    "ernie4_5_vl_moe",
    "cosmos3_edge",
    "cosmos3_omni",
    "cohere_compass",
)
"""Images as patches with `image_grid_thw`, as of Qwen2-VL."""
_VIDEO_TYPES = ("instructblipvideo", "videomae", "timesformer", "videoprism", "vivit", "tvp")
_SPECTRA = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")


def _first(config: Any, *names: str) -> Any:
    """The first of these entries that the configuration has."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _counts_from_padding(model: nn.Module) -> bool:
    """RoBERTa and its kin number positions from the padding token's number on."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return any(getattr(table, "padding_idx", None) is not None for table in tables)
