"""Settings of the optimizer: what all optimizers share, and one section for each optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from segtrain.config.facts import setting
from segtrain.config.section import Section, SettingError, durations

POLY_POWER = 0.9


class _Optim(Section):
    """Settings that all optimizers share."""

    name: str = ""
    lr: float = setting(
        ["speed_neutral"], 1e-3, gt=0, description="peak learning rate, before the schedule"
    )
    encoder_lr: float = setting(
        ["speed_neutral"], 1.0, ge=0, description="factor on lr for the encoder"
    )
    layer_decay: float = setting(
        ["speed_neutral"],
        1.0,
        gt=0,
        le=1,
        description="factor on lr from each group of encoder layers to the one before it; a group "
        "is a block of a vision transformer, or up to three blocks of a stage. 1: none",
    )
    encoder_start: str = setting(
        ["speed_neutral"],
        "0st",
        description="when the encoder begins to learn, with a warm-up of its own: '1ep', '500st', "
        "or '5%'; until then its lr is 0",
    )
    weight_decay: float = setting(
        ["speed_neutral"],
        1e-2,
        ge=0,
        description="weight decay; not applied to biases, normalization layers, positions, and "
        "tokens",
    )
    schedule: Literal["constant", "poly", "cosine", "onecycle", "linear"] = setting(
        ["speed_neutral"],
        "poly",
        description="learning rate schedule; after the warm-up, all but 'constant' decay to 0",
    )
    poly_power: Union[float, None] = setting(
        ["speed_neutral"], POLY_POWER, gt=0, description="'poly': lr * (1 - step / steps) ** power"
    )
    warmup: str = setting(
        ["speed_neutral"],
        "0st",
        description="linear warm-up, or rising part of 'onecycle': '1ep', '500st', or '15%'",
    )
    clip: float = Field(0.0, ge=0, description="largest global gradient norm; 0: no clipping")
    ema: float = Field(
        0.0, ge=0, lt=1, description="decay of an exponential moving average of the weights; 0: off"
    )

    _check_warmup = field_validator("warmup", "encoder_start", mode="before")(
        durations("ep", "st", "%", zero=True)
    )

    @property
    def starts_encoder_late(self) -> bool:
        return float(self.encoder_start.rstrip("epst%")) > 0

    @model_validator(mode="before")
    @classmethod
    def _schedule(cls, value: Any) -> Any:
        """``poly_power`` belongs to the schedule ``poly``. With any other schedule, it is None and
        cannot be set.
        """
        if not isinstance(value, dict):
            return value
        schedule, power = value.get("schedule", "poly"), value.get("poly_power")
        if schedule == "poly":
            return {**value, "poly_power": POLY_POWER if power is None else power}
        if power is not None:
            why = f"schedule {schedule!r} has no poly_power: remove it, or set optim.schedule=poly"
            raise SettingError(
                f"optim.poly_power={power!r}: {why}", "setting-of-another-choice", owners=("poly",)
            )
        return {**value, "poly_power": None}

    @model_serializer(mode="wrap")
    def _without_poly_power(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.schedule != "poly":
            fields.pop("poly_power", None)
        return fields


Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamWOptim(_Optim):
    """AdamW."""

    name: Literal["adamw"] = Field("adamw", description="which optimizer")
    betas: tuple[Beta, Beta] = setting(
        ["speed_neutral"], (0.9, 0.999), description="decay rates of the two moments"
    )


class SGDOptim(_Optim):
    """SGD with Nesterov momentum."""

    name: Literal["sgd"] = Field("sgd", description="which optimizer")
    momentum: float = setting(
        ["speed_neutral"], 0.9, ge=0, lt=1, description="momentum; 0: plain SGD"
    )


class MuonOptim(_Optim):
    """Muon for convolution filters, AdamW for all other weights."""

    name: Literal["muon"] = Field("muon", description="which optimizer")
    muon_lr: float = setting(
        ["speed_neutral"],
        2e-2,
        gt=0,
        description="learning rate of convolution filters; lr is for all other weights",
    )
    momentum: float = setting(
        ["speed_neutral"], 0.9, ge=0, lt=1, description="momentum of the convolution filters"
    )
    betas: tuple[Beta, Beta] = setting(
        ["speed_neutral"], (0.9, 0.999), description="decay rates of the two moments of AdamW"
    )


Optim = Annotated[Union[AdamWOptim, SGDOptim, MuonOptim], Field(discriminator="name")]
