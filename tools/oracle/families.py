"""Tiny geometries of each family, written the way published checkpoints write config.json. Standard library only."""
import json

FAMILIES = ["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "qwen3_moe", "deepseek_v3", "deepseek_v3_yarn", "kimi_k2", "glm4_moe", "gpt_oss", "minimax_m2", "hy_v3", "glm4_moe_lite",
            "glm_moe_dsa", "deepseek_v32", "kimi_k25", "qwen3_vl_moe", "qwen2_moe", "mixtral", "olmoe", "qwen2", "qwen3", "qwen3_5", "qwen3_5_text", "llama",
            "qwen4_exp", "qwen4_exp_text"]
# How the published checkpoints of the family store routed experts.
DEFAULT_EXPERTS = {"qwen3_5_moe": "fused", "qwen4_exp": "fused", "gpt_oss": "fused", "qwen3_vl_moe": "fused"}
HYBRID = ("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen4_exp", "qwen4_exp_text")
DENSE = ("qwen2", "qwen3", "qwen3_5", "qwen3_5_text", "llama")
MLA = ("deepseek_v3", "deepseek_v3_yarn", "kimi_k2", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa", "deepseek_v32")

# Geometry flags with their defaults; a family takes what it needs. None: the family chooses.
GEOMETRY = dict(layers=None, hidden=64, heads=4, kv_heads=2, head_dim=32, experts=8, topk=2, ffn=32, dense_ffn=96, vocab=512)


def base(g, **more):
    c = dict(vocab_size=g["vocab"], hidden_size=g["hidden"], intermediate_size=g["dense_ffn"], num_hidden_layers=g["layers"],
             num_attention_heads=g["heads"], num_key_value_heads=g["kv_heads"], hidden_act="silu", max_position_embeddings=4096,
             rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, attention_dropout=0.0,
             initializer_range=0.02, use_cache=True)
    c.update(more)
    return c


def hybrid_layers(n, interval=4):
    return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(n)]


def qwen3_5_moe(g):
    g["layers"] = g["layers"] or 4
    rot = int(g["head_dim"] * 0.25) // 2            # half of the rotated dimensions, split over time, height, width
    w = rot // 3
    text = base(g, model_type="qwen3_5_moe_text", attn_output_gate=True, full_attention_interval=4, head_dim=g["head_dim"],
                linear_conv_kernel_dim=4, linear_key_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
                linear_value_head_dim=32, mamba_ssm_dtype="float32", mlp_only_layers=[], moe_intermediate_size=g["ffn"],
                mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, num_experts=g["experts"],
                num_experts_per_tok=g["topk"], router_aux_loss_coef=0.001, shared_expert_intermediate_size=g["ffn"],
                eos_token_id=2, pad_token_id=None,
                rope_parameters=dict(mrope_interleaved=True, mrope_section=[rot - 2 * w, w, w], partial_rotary_factor=0.25,
                                     rope_theta=10000000, rope_type="default"))
    del text["intermediate_size"]                   # published text configs have none: every layer is sparse
    vision = dict(deepstack_visual_indexes=[], depth=2, hidden_act="gelu_pytorch_tanh", hidden_size=32, in_channels=3,
                  initializer_range=0.02, intermediate_size=64, model_type="qwen3_5_moe", num_heads=2,
                  num_position_embeddings=16, out_hidden_size=g["hidden"], patch_size=16, spatial_merge_size=2,
                  temporal_patch_size=2)
    return dict(architectures=["Qwen3_5MoeForConditionalGeneration"], image_token_id=g["vocab"] - 4, model_type="qwen3_5_moe",
                text_config=text, tie_word_embeddings=False, video_token_id=g["vocab"] - 3, vision_config=vision,
                vision_end_token_id=g["vocab"] - 5, vision_start_token_id=g["vocab"] - 6)


def qwen3_5_moe_text(g):
    """The text model alone: its config at the top level, tensors under `model.`."""
    return dict(qwen3_5_moe(g)["text_config"], architectures=["Qwen3_5MoeForCausalLM"])


def qwen3_5(g):
    c = qwen3_5_moe(g)
    text = c["text_config"]
    for key in ("mlp_only_layers", "moe_intermediate_size", "num_experts", "num_experts_per_tok", "router_aux_loss_coef", "shared_expert_intermediate_size"):
        del text[key]
    text.update(model_type="qwen3_5_text", intermediate_size=g["dense_ffn"])
    c["vision_config"]["model_type"] = "qwen3_5"
    c.update(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5")
    return c


def qwen3_5_text(g):
    return dict(qwen3_5(g)["text_config"], architectures=["Qwen3_5ForCausalLM"])


def qwen4_exp(g):
    """Residual streams; its indexer selects every position as long as they fit its budget. `ple_layer_ids` count from 1."""
    c = qwen3_5_moe(g)
    text = c["text_config"]
    for key in ("attn_output_gate", "mlp_only_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"):
        del text[key]
    text.update(model_type="qwen4_exp_text", hc_count=4, hc_lowrank=24, norm_topk_prob=True, output_gate_type="sigmoid",
                indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=2048, indexer_compress_ratio=4,
                ple_layer_ids=[2], ple_embed_dim=64, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=4,
                ngram_vocab_size_base=101, make_ngram_vocab_size_divisible_by=16, seed=1234, split_ngram_parts=3)
    c["vision_config"]["model_type"] = "qwen4_exp"
    c.update(architectures=["Qwen4ExpForConditionalGeneration"], model_type="qwen4_exp")
    return c


def qwen4_exp_text(g):
    return dict(qwen4_exp(g)["text_config"], architectures=["Qwen4ExpForCausalLM"])


def qwen3_next(g):
    g["layers"] = g["layers"] or 4
    return base(g, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", decoder_sparse_step=1,
                full_attention_interval=4, head_dim=g["head_dim"], linear_conv_kernel_dim=4, linear_key_head_dim=32,
                linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=32, mlp_only_layers=[],
                moe_intermediate_size=g["ffn"], norm_topk_prob=True, num_experts=g["experts"],
                num_experts_per_tok=g["topk"], output_router_logits=False, partial_rotary_factor=0.25, rope_scaling=None,
                rope_theta=10000000, router_aux_loss_coef=0.001, shared_expert_intermediate_size=g["ffn"],
                use_sliding_window=False, bos_token_id=1, eos_token_id=2)


def qwen3_moe(g):
    g["layers"] = g["layers"] or 3
    return base(g, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", decoder_sparse_step=1,
                head_dim=g["head_dim"], max_window_layers=g["layers"], mlp_only_layers=[], moe_intermediate_size=g["ffn"],
                norm_topk_prob=True, num_experts=g["experts"], num_experts_per_tok=g["topk"], output_router_logits=False,
                rope_scaling=None, rope_theta=1000000.0, router_aux_loss_coef=0.001, sliding_window=None,
                use_sliding_window=False, bos_token_id=1, eos_token_id=2)


def deepseek_v3(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", aux_loss_alpha=0.001, ep_size=1,
             first_k_dense_replace=1, kv_lora_rank=32, moe_intermediate_size=g["ffn"], moe_layer_freq=1, n_group=2,
             n_routed_experts=g["experts"], n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=g["topk"],
             num_nextn_predict_layers=1, pretraining_tp=1, q_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=16,
             rope_scaling=None, rope_theta=10000, routed_scaling_factor=2.5, scoring_func="sigmoid", seq_aux=True,
             topk_group=1, topk_method="noaux_tc", v_head_dim=32, bos_token_id=1, eos_token_id=2)
    c["num_key_value_heads"] = c["num_attention_heads"]
    return c


def deepseek_v3_yarn(g):
    c = deepseek_v3(g)
    c["max_position_embeddings"] = 163840
    c["rope_scaling"] = dict(beta_fast=32, beta_slow=1, factor=40, mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=4096, type="yarn")
    return c


def kimi_k2(g):
    c = deepseek_v3_yarn(g)
    c.update(model_type="kimi_k2", n_group=1, topk_group=1, routed_scaling_factor=2.827, rope_theta=50000.0,
             num_nextn_predict_layers=0, max_position_embeddings=131072)
    c["rope_scaling"]["factor"] = 32.0
    return c


def glm4_moe(g):
    g["layers"] = g["layers"] or 3
    return base(g, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", attention_bias=True, first_k_dense_replace=1,
                head_dim=g["head_dim"], moe_intermediate_size=g["ffn"], n_group=1, n_routed_experts=g["experts"],
                n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=g["topk"], num_nextn_predict_layers=1,
                partial_rotary_factor=0.5, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000,
                routed_scaling_factor=2.5, topk_group=1, use_qk_norm=True, eos_token_id=[2], pad_token_id=0)


def gpt_oss(g):
    g["layers"] = g["layers"] or 4
    return base(g, architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, experts_per_token=g["topk"],
                head_dim=g["head_dim"], initial_context_length=4096, intermediate_size=g["ffn"],
                layer_types=[("sliding_attention", "full_attention")[i % 2] for i in range(g["layers"])],
                max_position_embeddings=131072, num_experts_per_tok=g["topk"], num_local_experts=g["experts"],
                output_router_logits=False, rms_norm_eps=1e-5,
                rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
                                  rope_type="yarn", truncate=False),
                rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=16, swiglu_limit=7.0, pad_token_id=0, eos_token_id=2)


def minimax_m2(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", head_dim=g["head_dim"],
             num_experts_per_tok=g["topk"], num_local_experts=g["experts"], qk_norm_type="per_layer", rope_theta=5000000,
             rotary_dim=g["head_dim"] // 2, scoring_func="sigmoid", use_mtp=True, use_qk_norm=True, use_routing_bias=True,
             bos_token_id=1, eos_token_id=2)
    c["intermediate_size"] = g["ffn"]
    return c


def hy_v3(g):
    g["layers"] = g["layers"] or 3
    return base(g, architectures=["HYV3ForCausalLM"], model_type="hy_v3", first_k_dense_replace=1, head_dim=g["head_dim"],
                moe_intermediate_size=g["ffn"], num_experts=g["experts"], num_experts_per_tok=g["topk"], num_nextn_predict_layers=1,
                num_shared_experts=1, rms_norm_eps=1e-5, rope_theta=11158840.0, route_norm=True, router_scaling_factor=2.826,
                bos_token_id=1, eos_token_id=2)


def glm4_moe_lite(g):
    c = deepseek_v3(g)
    for key in ("aux_loss_alpha", "ep_size", "seq_aux", "scoring_func", "moe_layer_freq", "rope_scaling"):
        del c[key]
    c.update(architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", n_group=1, partial_rotary_factor=1.0,
             rms_norm_eps=1e-5, rope_theta=1000000, routed_scaling_factor=1.8)
    return c


def glm_moe_dsa(g):
    c = glm4_moe_lite(g)
    del c["partial_rotary_factor"]
    c.update(architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", index_head_dim=32, index_n_heads=2, index_topk=2048,
             routed_scaling_factor=2.5)
    return c


def deepseek_v32(g):
    c = deepseek_v3_yarn(g)
    c.update(architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", index_head_dim=32, index_n_heads=2, index_topk=2048)
    return c


def kimi_k25(g):
    text = kimi_k2(g)
    return dict(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", text_config=text, tie_word_embeddings=False,
                media_placeholder_token_id=g["vocab"] - 4, vision_config=dict(mm_hidden_size=32, vt_hidden_size=32))


def qwen3_vl_moe(g):
    text = qwen3_moe(g)
    for key in ("max_window_layers", "sliding_window", "use_sliding_window", "output_router_logits", "architectures"):
        del text[key]
    rot = g["head_dim"] // 2
    w = rot // 3
    text.update(model_type="qwen3_vl_moe_text", rope_scaling=dict(mrope_interleaved=True, mrope_section=[rot - 2 * w, w, w], rope_type="default"),
                rope_theta=5000000)
    vision = dict(deepstack_visual_indexes=[0], depth=1, hidden_act="gelu_pytorch_tanh", hidden_size=32, in_channels=3,
                  initializer_range=0.02, intermediate_size=64, model_type="qwen3_vl_moe", num_heads=2, num_position_embeddings=16,
                  out_hidden_size=g["hidden"], patch_size=16, spatial_merge_size=2, temporal_patch_size=2)
    return dict(architectures=["Qwen3VLMoeForConditionalGeneration"], image_token_id=g["vocab"] - 4, model_type="qwen3_vl_moe",
                text_config=text, tie_word_embeddings=False, video_token_id=g["vocab"] - 3, vision_config=vision,
                vision_end_token_id=g["vocab"] - 5, vision_start_token_id=g["vocab"] - 6)


def qwen2_moe(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", decoder_sparse_step=1, max_window_layers=g["layers"],
             mlp_only_layers=[], moe_intermediate_size=g["ffn"], norm_topk_prob=False, num_experts=g["experts"],
             num_experts_per_tok=g["topk"], output_router_logits=False, rope_theta=1000000.0, router_aux_loss_coef=0.001,
             shared_expert_intermediate_size=g["ffn"] + 8, sliding_window=None, use_sliding_window=False, bos_token_id=1, eos_token_id=2)
    del c["attention_bias"]
    return c


def mixtral(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["MixtralForCausalLM"], model_type="mixtral", num_experts_per_tok=g["topk"], num_local_experts=g["experts"],
             output_router_logits=False, rms_norm_eps=1e-5, rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None,
             bos_token_id=1, eos_token_id=2)
    c["intermediate_size"] = g["ffn"]
    del c["attention_bias"]
    return c


def olmoe(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["OlmoeForCausalLM"], model_type="olmoe", clip_qkv=None, norm_topk_prob=False, num_experts=g["experts"],
             num_experts_per_tok=g["topk"], output_router_logits=False, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0,
             router_aux_loss_coef=0.01, eos_token_id=2, pad_token_id=1)
    c["intermediate_size"] = g["ffn"]
    return c


def qwen2(g):
    g["layers"] = g["layers"] or 3
    c = base(g, architectures=["Qwen2ForCausalLM"], model_type="qwen2", max_window_layers=g["layers"], rope_theta=1000000.0, sliding_window=None,
             use_sliding_window=False, bos_token_id=1, eos_token_id=2)
    del c["attention_bias"]
    return c


def qwen3(g):
    g["layers"] = g["layers"] or 3
    return base(g, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=g["head_dim"], max_window_layers=g["layers"], rope_scaling=None,
                rope_theta=1000000.0, sliding_window=None, use_sliding_window=False, bos_token_id=1, eos_token_id=2)


def llama(g):
    g["layers"] = g["layers"] or 3
    return base(g, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=g["head_dim"], mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-5,
                rope_scaling=None, rope_theta=500000.0, bos_token_id=1, eos_token_id=[2, 3])


def build(family, geometry, sets=()):
    """config.json of a tiny model. `sets` are KEY=JSON strings; a dotted key reaches inside (rope_scaling.factor=8)."""
    g = dict(GEOMETRY, **{k: v for k, v in geometry.items() if v is not None})
    c = globals()[family](g)
    t = c.get("text_config", c)
    for s in sets:
        key, _, val = s.partition("=")
        try:
            val = json.loads(val)
        except ValueError:
            pass                                    # a bare word is a string
        d = t
        *path, last = key.split(".")
        for p in path:
            d = d[p]
        d[last] = val
        if key == "tie_word_embeddings":
            c[key] = val
    if family in HYBRID:
        t["layer_types"] = hybrid_layers(t["num_hidden_layers"], t["full_attention_interval"])
    return c


def add_flags(ap):
    for k, v in GEOMETRY.items():
        ap.add_argument("--" + k.replace("_", "-"), type=int, default=None, help=f"default {v or 'by family'}")
    ap.add_argument("--set", action="append", default=[], metavar="KEY=JSON", dest="sets",
                    help="set any config.json key, for example norm_topk_prob=false or rope_scaling.factor=8")
