"""Settings of the loss: what all terms share, and one section for each kind of term."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.facts import setting
from segtrain.config.section import Section, SettingError


class _Term(Section):
    name: str = ""
    weight: float = Field(1.0, gt=0, description="factor of this term in the sum")


class CrossEntropyTerm(_Term):
    """Cross-entropy."""

    name: Literal["ce"] = Field("ce", description="which loss")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target spread evenly over all classes"
    )


class OHEMTerm(_Term):
    """Cross-entropy on the hardest pixels (online hard example mining)."""

    name: Literal["ohem"] = Field("ohem", description="which loss")
    min_kept: float = Field(
        0.25, gt=0, le=1, description="smallest share of the valid pixels to keep"
    )
    threshold: float = Field(
        0.7, gt=0, le=1, description="pixels whose true class is less probable are always kept"
    )


class FocalTerm(_Term):
    """Focal loss: cross-entropy with less weight on easy pixels."""

    name: Literal["focal"] = Field("focal", description="which loss")
    gamma: float = Field(
        2.0, ge=0, description="how strongly easy pixels are down-weighted; 0: plain cross-entropy"
    )


class DiceTerm(_Term):
    """Dice loss, averaged over the classes present."""

    name: Literal["dice"] = Field("dice", description="which loss")


class JaccardTerm(_Term):
    """Jaccard (IoU) loss, averaged over the classes present."""

    name: Literal["jaccard"] = Field("jaccard", description="which loss")


class LovaszTerm(_Term):
    """Lovasz-softmax loss."""

    name: Literal["lovasz"] = Field("lovasz", description="which loss")


class TverskyTerm(_Term):
    """Tversky loss: Dice with separate weights for false positives and false negatives."""

    name: Literal["tversky"] = Field("tversky", description="which loss")
    alpha: float = Field(0.5, ge=0, description="weight of false positives")
    beta: float = Field(0.5, ge=0, description="weight of false negatives")

    @model_validator(mode="after")
    def _counts_errors(self) -> TverskyTerm:
        if not self.alpha and not self.beta:
            raise SettingError(
                "loss.terms: tversky with alpha=0 and beta=0 is always 0: set one of them above 0"
            )
        return self


LossTerm = Annotated[
    Union[CrossEntropyTerm, OHEMTerm, FocalTerm, DiceTerm, JaccardTerm, LovaszTerm, TverskyTerm],
    Field(discriminator="name"),
]


class Loss(Section):
    """A weighted sum of loss terms over the valid pixels of the global batch."""

    terms: tuple[LossTerm, ...] = Field(
        (CrossEntropyTerm(),), min_length=1, description="terms to add up; see below"
    )
    class_weights: Union[Literal["none", "auto"], tuple[float, ...]] = setting(
        ["speed_neutral"],
        "none",
        description="one weight per class, or 'auto' to compute them from the training masks",
    )
    class_weight_power: float = setting(
        ["speed_neutral"],
        0.5,
        ge=0,
        le=1,
        description="'auto' weights are (median share / share of the class) ** power; 0: all equal",
    )
    aux_weight: float = setting(
        ["speed_neutral"],
        0.4,
        ge=0,
        description="weight of auxiliary heads, for networks that have them",
    )
    stride: int = Field(
        1,
        ge=1,
        le=8,
        description="compute the loss on every n-th row and column, at random offsets",
    )
    upsample: Literal["auto", "direct", "products", "fused"] = setting(
        ["untrained"],
        "auto",
        description="how logits are upsampled: by the network itself (direct), as two matrix "
        "products, or inside the loss's own kernels (fused; NVIDIA GPUs, all losses but lovasz). "
        "auto: on a GPU the fastest one, with train.deterministic fused if possible, else "
        "products; on a CPU direct",
    )
    full_logits: bool = Field(
        False, description="upsample the logits of the whole batch at once; takes more memory"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Loss:
        lovasz = any(term.name == "lovasz" for term in self.terms)
        others = {"loss.full_logits": self.full_logits, "lovasz": lovasz}
        if self.upsample == "fused" and any(others.values()):
            names = " and ".join(name for name, is_set in others.items() if is_set)
            why = f"loss.upsample=fused does not go with {names}: use loss.upsample=auto"
            raise SettingError(why, advice={"loss.upsample": "auto"})
        return self

    @field_validator("terms", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Expand the short forms ``ce`` and ``[ce, dice]`` to terms of weight 1. A term without a
        name is ``ce``.
        """
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            return value
        terms = [{"name": item} if isinstance(item, str) else item for item in value]
        return [{"name": "ce", **item} if isinstance(item, dict) else item for item in terms]

    @field_validator("class_weights")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, tuple) and (min(value, default=0) < 0 or not any(value)):
            raise ValueError("must be numbers from 0, at least one of them above 0")
        return value
