"""Look inside a model: attention, logit lens, head patterns, ablation, patching and probes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.insight.heads.head_ablation import ablate
    from qkv.insight.heads.head_patterns import head_patterns
    from qkv.insight.heads.head_syntax import head_syntax
    from qkv.insight.inspect.activation_patching import patch
    from qkv.insight.inspect.alignment import alignment
    from qkv.insight.inspect.attention_edits import Edit, apply_edits
    from qkv.insight.inspect.attribution import attribution
    from qkv.insight.inspect.capture import capture_attention
    from qkv.insight.inspect.edit_effects import edit_effects
    from qkv.insight.inspect.logit_lens import logit_lens, next_tokens
    from qkv.insight.inspect.model_input import read
    from qkv.insight.inspect.residual_norms import residual_norms
    from qkv.insight.look import Look, look
    from qkv.insight.probing.activations import activations
    from qkv.insight.probing.probe_model import probe
    from qkv.insight.probing.probe_tasks import probe_task
    from qkv.insight.walk.head_walk import walk_head
    from qkv.insight.walk.model_walk import walk_model
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "Edit",
    "Look",
    "ablate",
    "activations",
    "alignment",
    "apply_edits",
    "attribution",
    "capture_attention",
    "edit_effects",
    "head_patterns",
    "head_syntax",
    "logit_lens",
    "look",
    "next_tokens",
    "patch",
    "probe",
    "probe_task",
    "read",
    "residual_norms",
    "walk_head",
    "walk_model",
]
