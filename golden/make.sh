#!/bin/bash
# make.sh WORKDIR [NAME...]: remake the golden cases (all, or those named) with the oracle environments that tools/oracle/setup.sh put in WORKDIR.
# NAME may be a pattern: 'mlx-*'. All: about 5 minutes on one idle core.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: make.sh WORKDIR [NAME...]" >&2; exit 2; }
export ORACLE_WORK OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
ORACLE_WORK=$(cd "$1" && pwd); shift
cd "$(dirname "$0")"
only=("$@")

wanted() {
  [ ${#only[@]} -eq 0 ] && return 0
  local p
  for p in "${only[@]}"; do [[ $1 == $p ]] && return 0; done
  return 1
}
make_one() { # SCRIPT NAME FLAGS...
  local script=$1 name=$2; shift 2
  wanted "$name" || return 0
  rm -rf "./$name"
  python3 "../tools/oracle/$script" "$@" --out "$name" 2>"$name.log" || { cat "$name.log" >&2; exit 1; }
  rm -f "$name/logits_native.npy" "$name.log"
  chmod 644 "$name"/*
}
pub() { make_one make_case.py "$@"; }
mlx() { make_one make_mlx_case.py "$@"; }
gguf() { make_one gguf_case.py "$@"; }

# Published style.
pub qwen3_moe-f32            --family qwen3_moe --dtype f32 --seed 11 --tokens 24 --vocab 256 --heads 3 --kv-heads 1 --head-dim 16 --experts 6 --topk 2 --ffn 16 --dense-ffn 56 --set 'mlp_only_layers=[1]' --set norm_topk_prob=false --set rms_norm_eps=0.01
pub qwen3_moe-bf16           --family qwen3_moe --dtype bf16 --seed 112 --tokens 150 --vocab 160 --hidden 48 --heads 4 --kv-heads 1 --head-dim 16 --experts 16 --topk 10 --ffn 16 --shards 3 --set tie_word_embeddings=true
pub qwen3_moe-f16-yarn       --family qwen3_moe --dtype f16 --resaved --seed 13 --tokens 96 --vocab 256 --layers 2 --topk 3 --ffn 16 --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64}'
pub qwen3_next-f32           --family qwen3_next --dtype f32 --seed 14 --qk-scale 0.02 --tokens 24 --vocab 256 --layers 3 --hidden 48 --heads 3 --kv-heads 1 --head-dim 16 --experts 6 --topk 3 --ffn 16 --dense-ffn 40 --set full_attention_interval=2 --set rms_norm_eps=0.01 --set linear_num_key_heads=1 --set linear_num_value_heads=3 --set linear_key_head_dim=24 --set linear_value_head_dim=16 --set linear_conv_kernel_dim=3 --set attention_bias=true --set norm_topk_prob=false --set 'mlp_only_layers=[0]' --set shared_expert_intermediate_size=24
pub qwen3_next-bf16          --family qwen3_next --dtype bf16 --seed 15 --tokens 150 --vocab 160 --head-dim 16 --experts 6 --topk 3 --ffn 16 --a-log bf16 --extras --shards 2 --set linear_key_head_dim=16 --set linear_value_head_dim=16
pub qwen3_5_moe-bf16         --family qwen3_5_moe --dtype bf16 --seed 16 --tokens 150 --vocab 160 --head-dim 16 --experts 6 --topk 3 --ffn 16 --expert-layout fused --extras --shards 2 --set linear_key_head_dim=16 --set linear_value_head_dim=24
pub qwen3_5_moe_text-f16     --family qwen3_5_moe_text --dtype f16 --seed 17 --qk-scale 0.02 --tokens 32 --vocab 320 --layers 3 --kv-heads 1 --ffn 16 --expert-layout fused --a-log bf16 --extras --set full_attention_interval=3 --set rms_norm_eps=0.001 --set tie_word_embeddings=true --set linear_num_value_heads=2
pub deepseek_v3-bf16         --family deepseek_v3 --dtype bf16 --seed 19 --tokens 150 --vocab 160 --heads 2 --experts 16 --topk 4 --ffn 8 --extras --router-bias -1.5 --set n_group=4 --set topk_group=2 --set q_lora_rank=null --set n_shared_experts=2
pub deepseek_v3-fp8          --family deepseek_v3 --dtype fp8 --seed 20 --tokens 32 --vocab 200 --layers 2 --hidden 136 --heads 2 --dense-ffn 160 --experts 3 --topk 2 --ffn 136 --extras --set n_group=1 --set rms_norm_eps=0.01
pub deepseek_v3_yarn-f32     --family deepseek_v3_yarn --dtype f32 --resaved --seed 21 --tokens 150 --vocab 160 --layers 2 --hidden 48 --heads 3 --experts 6 --topk 3 --ffn 16 --set rope_scaling.original_max_position_embeddings=64 --set max_position_embeddings=2560
pub kimi_k2-bf16             --family kimi_k2 --dtype bf16 --seed 22 --tokens 150 --vocab 160 --hidden 48 --heads 3 --experts 12 --topk 9 --ffn 12 --set rope_scaling.original_max_position_embeddings=64 --set max_position_embeddings=2048 --set rope_scaling.mscale_all_dim=0.7
pub kimi_k2-fp8              --family kimi_k2 --dtype fp8 --seed 23 --tokens 40 --vocab 200 --layers 2 --hidden 144 --heads 3 --topk 3 --ffn 24 --shards 2 --set kv_lora_rank=136 --set v_head_dim=48
pub glm4_moe-bf16            --family glm4_moe --dtype bf16 --seed 24 --tokens 150 --vocab 160 --head-dim 16 --topk 3 --ffn 16 --extras
pub glm4_moe-f16             --family glm4_moe --dtype f16 --resaved --seed 25 --tokens 32 --vocab 256 --layers 4 --heads 6 --head-dim 16 --topk 3 --ffn 16 --set attention_bias=false --set use_qk_norm=false --set first_k_dense_replace=2 --set n_shared_experts=2 --set norm_topk_prob=false
pub qwen3_next-bf16-wide     --family qwen3_next --dtype bf16 --seed 26 --qk-scale 0.02 --tokens 24 --vocab 128 --layers 2 --hidden 128 --heads 2 --kv-heads 1 --head-dim 32 --experts 3 --topk 2 --ffn 64 --set full_attention_interval=2 --set shared_expert_intermediate_size=64 --set linear_num_key_heads=1 --set linear_num_value_heads=2 --set linear_key_head_dim=32 --set linear_value_head_dim=32
pub deepseek_v3-fp8-wide     --family deepseek_v3 --dtype fp8 --seed 27 --tokens 24 --vocab 96 --layers 2 --hidden 256 --heads 2 --dense-ffn 64 --experts 3 --topk 2 --ffn 128 --set n_group=1 --set kv_lora_rank=64 --set q_lora_rank=64 --set qk_nope_head_dim=64 --set qk_rope_head_dim=16 --set v_head_dim=64

pub gpt_oss-mxfp4            --family gpt_oss --dtype mxfp4 --seed 71 --tokens 60 --vocab 128 --layers 3 --hidden 64 --heads 6 --kv-heads 2 --head-dim 24 --experts 6 --topk 3 --ffn 96 --shards 2 --set sliding_window=11 --set swiglu_limit=0.4 --set rope_scaling.original_max_position_embeddings=1024
pub input-first/qwen3_vl_moe-bf16 --family qwen3_vl_moe --dtype bf16 --seed 72 --tokens 40 --vocab 128 --layers 2 --hidden 96 --head-dim 24 --experts 6 --topk 3 --ffn 32
pub minimax_m2-bf16          --family minimax_m2 --dtype bf16 --seed 61 --tokens 40 --vocab 128 --hidden 48 --heads 3 --kv-heads 1 --head-dim 24 --experts 6 --topk 3 --ffn 16 --shards 2 --router-bias -1.5 --set rotary_dim=10
pub hy_v3-bf16               --family hy_v3 --dtype bf16 --seed 62 --tokens 40 --vocab 128 --hidden 48 --heads 6 --kv-heads 3 --head-dim 16 --experts 7 --topk 3 --ffn 16 --dense-ffn 40 --extras --set num_shared_experts=2
pub glm4_moe_lite-bf16       --family glm4_moe_lite --dtype bf16 --seed 63 --tokens 40 --vocab 128 --hidden 48 --heads 3 --experts 6 --topk 2 --ffn 16 --dense-ffn 40 --extras --set q_lora_rank=24 --set v_head_dim=24
pub glm_moe_dsa-bf16         --family glm_moe_dsa --dtype bf16 --seed 64 --tokens 40 --vocab 128 --hidden 48 --heads 3 --experts 6 --topk 2 --ffn 16 --dense-ffn 40 --set first_k_dense_replace=1 --set q_lora_rank=24 --set index_topk=64 --set 'indexer_types=["full","shared","full"]'
pub deepseek_v32-bf16        --family deepseek_v32 --dtype bf16 --seed 65 --tokens 40 --vocab 128 --layers 2 --hidden 48 --heads 3 --experts 8 --topk 2 --ffn 16 --dense-ffn 40 --set index_topk=64 --set rope_scaling.original_max_position_embeddings=16 --set max_position_embeddings=640
pub glm_moe_dsa-bf16-sparse  --family glm_moe_dsa --dtype bf16 --seed 66 --tokens 72 --vocab 128 --layers 4 --hidden 48 --heads 3 --experts 6 --topk 2 --ffn 16 --dense-ffn 40 --set first_k_dense_replace=1 --set q_lora_rank=24 --set index_n_heads=8 --set index_topk=20 --set 'indexer_types=["full","shared","full","shared"]'
pub deepseek_v32-bf16-sparse --family deepseek_v32 --dtype bf16 --seed 67 --tokens 72 --vocab 128 --layers 2 --hidden 48 --heads 3 --experts 8 --topk 2 --ffn 16 --dense-ffn 40 --set index_n_heads=8 --set index_topk=20 --set rope_scaling.original_max_position_embeddings=16 --set max_position_embeddings=640
pub kimi_k25-bf16            --family kimi_k25 --dtype bf16 --seed 66 --tokens 40 --vocab 128 --layers 2 --hidden 48 --heads 3 --experts 6 --topk 3 --ffn 16 --dense-ffn 40
pub qwen2_moe-bf16           --family qwen2_moe --dtype bf16 --seed 67 --tokens 40 --vocab 128 --hidden 48 --heads 4 --kv-heads 2 --experts 6 --topk 3 --ffn 16 --dense-ffn 40 --set 'mlp_only_layers=[1]'
pub mixtral-bf16             --family mixtral --dtype bf16 --seed 68 --tokens 40 --vocab 128 --hidden 48 --heads 6 --kv-heads 2 --experts 5 --topk 2 --ffn 24 --shards 2 --set sliding_window=9
pub olmoe-bf16               --family olmoe --dtype bf16 --seed 69 --tokens 40 --vocab 128 --hidden 48 --heads 3 --kv-heads 3 --experts 6 --topk 3 --ffn 16

# Without experts.
pub qwen3-bf16               --family qwen3 --dtype bf16 --seed 201 --tokens 40 --vocab 128 --hidden 48 --heads 6 --kv-heads 3 --head-dim 24 --dense-ffn 40 --shards 2 --set attention_bias=true
pub qwen3-f16-yarn           --family qwen3 --dtype f16 --resaved --seed 202 --tokens 96 --vocab 128 --layers 2 --hidden 48 --heads 3 --kv-heads 1 --head-dim 20 --dense-ffn 56 --set tie_word_embeddings=true --set rms_norm_eps=0.01 --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64}'
pub qwen3-fp8                --family qwen3 --dtype fp8 --seed 203 --tokens 32 --vocab 96 --layers 2 --hidden 136 --heads 3 --kv-heads 1 --head-dim 40 --dense-ffn 144
pub qwen2-bf16               --family qwen2 --dtype bf16 --seed 204 --tokens 40 --vocab 128 --hidden 48 --heads 6 --kv-heads 3 --dense-ffn 40 --set tie_word_embeddings=true
pub qwen2-f16-yarn           --family qwen2 --dtype f16 --seed 205 --tokens 96 --vocab 128 --layers 2 --hidden 60 --heads 5 --kv-heads 1 --dense-ffn 56 --shards 2 --set 'rope_scaling={"type":"yarn","factor":4.0,"original_max_position_embeddings":32}'
pub qwen3_5-bf16             --family qwen3_5 --dtype bf16 --seed 206 --tokens 150 --vocab 160 --hidden 48 --heads 6 --kv-heads 3 --head-dim 16 --dense-ffn 56 --extras --shards 2 --set tie_word_embeddings=true --set linear_num_value_heads=6 --set linear_key_head_dim=16 --set linear_value_head_dim=24
pub qwen3_5_text-f16         --family qwen3_5_text --dtype f16 --seed 207 --qk-scale 0.02 --tokens 32 --vocab 128 --layers 3 --hidden 48 --heads 3 --kv-heads 1 --head-dim 24 --dense-ffn 40 --a-log bf16 --extras --set full_attention_interval=3 --set rms_norm_eps=0.001 --set linear_num_value_heads=2 --set linear_key_head_dim=16 --set linear_value_head_dim=16
pub qwen4_exp-bf16           --family qwen4_exp --dtype bf16 --seed 403 --tokens 150 --vocab 96 --hidden 32 --head-dim 16 --heads 4 --kv-heads 2 --experts 6 --topk 2 --ffn 16 --extras --shards 2 --set linear_key_head_dim=16 --set linear_value_head_dim=16 --set linear_num_value_heads=4 --set hc_lowrank=12 --set 'ple_layer_ids=[2,3]' --set ple_embed_dim=48 --set 'eos_token_id=[94,2]' --set ngram_vocab_size_base=61
pub qwen4_exp-bf16-sparse    --family qwen4_exp --dtype bf16 --seed 404 --tokens 72 --vocab 96 --layers 4 --hidden 32 --head-dim 16 --heads 4 --kv-heads 2 --experts 6 --topk 2 --ffn 16 --extras --set linear_key_head_dim=16 --set linear_value_head_dim=16 --set linear_num_value_heads=4 --set hc_lowrank=12 --set 'ple_layer_ids=[3]' --set ple_embed_dim=48 --set full_attention_interval=2 --set indexer_budget=12 --set indexer_compress_ratio=4 --set 'eos_token_id=[94,2]' --set ngram_vocab_size_base=61
pub qwen4_exp_text-f32       --family qwen4_exp_text --dtype f32 --seed 402 --tokens 32 --vocab 128 --layers 3 --hidden 32 --head-dim 16 --heads 4 --kv-heads 1 --experts 6 --topk 3 --ffn 16 --qk-scale 0.02 --extras --set ple_layer_ids=null --set hc_count=3 --set hc_lowrank=12 --set linear_key_head_dim=16 --set linear_value_head_dim=16 --set linear_num_value_heads=2 --set full_attention_interval=3 --set output_gate_type=null --set rms_norm_eps=0.001 --set tie_word_embeddings=true --set norm_topk_prob=false --set attention_bias=true
pub llama-bf16               --family llama --dtype bf16 --seed 208 --tokens 96 --vocab 128 --hidden 48 --heads 6 --kv-heads 3 --head-dim 20 --dense-ffn 40 --shards 2 --set attention_bias=true --set mlp_bias=true --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}'
pub llama-f16-linear         --family llama --dtype f16 --seed 209 --tokens 40 --vocab 128 --layers 2 --hidden 60 --heads 5 --kv-heads 5 --dense-ffn 56 --set head_dim=null --set tie_word_embeddings=true --set rope_theta=10000.0 --set 'rope_scaling={"type":"linear","factor":4.0}'
pub llama-f32-yarn           --family llama --dtype f32 --resaved --seed 210 --tokens 96 --vocab 96 --layers 2 --hidden 48 --heads 3 --kv-heads 1 --head-dim 24 --dense-ffn 40 --set rms_norm_eps=0.01 --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64,"beta_fast":16.0,"beta_slow":2.0}'
pub llama-bf16-wide          --family llama --dtype bf16 --seed 220 --tokens 24 --vocab 128 --layers 2 --hidden 64 --heads 4 --kv-heads 2 --head-dim 32 --dense-ffn 128 --set attention_bias=true --set mlp_bias=true

# In the formats that experts are published in.
pub kimi_k2-int4             --family kimi_k2 --dtype int4 --seed 61 --tokens 40 --vocab 160 --layers 2 --hidden 64 --heads 3 --experts 6 --topk 3 --ffn 32 --set rope_scaling.original_max_position_embeddings=64 --set max_position_embeddings=2048
pub qwen3_moe-mxfp4          --family qwen3_moe --dtype mxfp4 --seed 62 --tokens 40 --vocab 160 --layers 2 --hidden 96 --heads 3 --kv-heads 1 --head-dim 16 --experts 6 --topk 2 --ffn 32 --shards 2
pub deepseek_v3-fp8-32       --family deepseek_v3 --dtype fp8 --fp8-block 32x32 --seed 63 --tokens 32 --vocab 160 --layers 2 --hidden 72 --heads 2 --dense-ffn 80 --experts 3 --topk 2 --ffn 40 --set n_group=1
pub deepseek_v3-fp8-e8m0     --family deepseek_v3 --dtype fp8 --fp8-scale e8m0 --fp8-scheme v4 --seed 64 --tokens 32 --vocab 160 --layers 2 --hidden 136 --heads 2 --dense-ffn 144 --experts 3 --topk 2 --ffn 136 --set n_group=1
pub deepseek_v3-fp8-channel  --family deepseek_v3 --dtype fp8 --fp8-scale bf16 --fp8-scheme channel --seed 65 --tokens 32 --vocab 160 --layers 2 --hidden 72 --heads 2 --dense-ffn 80 --experts 3 --topk 2 --ffn 40 --set n_group=1

# Written by mlx-lm.
mlx mlx-qwen3_moe-q4-g32-bf16         --family qwen3_moe --bits 4 --group 32 --dtype bf16 --seed 31 --tokens 40 --vocab 256 --layers 4 --hidden 64 --head-dim 32 --ffn 32 --set tie_word_embeddings=true --set decoder_sparse_step=2
mlx mlx-qwen3_moe-q2-g128-f32         --family qwen3_moe --bits 2 --group 128 --dtype f32 --seed 32 --tokens 32 --vocab 256 --heads 4 --head-dim 32 --experts 4
mlx mlx-qwen3_next-q5-g64-bf16        --family qwen3_next --bits 5 --group 64 --dtype bf16 --seed 33 --tokens 40 --vocab 256 --layers 3 --hidden 64 --head-dim 32 --experts 6 --topk 3 --set full_attention_interval=3 --set shared_expert_intermediate_size=96
mlx mlx-qwen3_next-q6-g32-f16         --family qwen3_next --bits 6 --group 32 --dtype f16 --seed 34 --tokens 32 --vocab 256 --hidden 64 --head-dim 16 --ffn 32 --experts 6 --topk 3 --set norm_topk_prob=false --set linear_num_key_heads=1
mlx mlx-qwen3_5_moe-q4-g64-bf16       --family qwen3_5_moe --bits 4 --group 64 --dtype bf16 --seed 35 --tokens 150 --vocab 160 --hidden 64 --head-dim 32 --experts 6 --topk 3 --extras --shards 2 --set linear_key_head_dim=16 --set linear_value_head_dim=16
mlx mlx-qwen3_5_moe-q8-g64-f32        --family qwen3_5_moe --bits 8 --group 64 --dtype f32 --seed 36 --tokens 24 --vocab 256 --layers 2 --hidden 64 --head-dim 32 --experts 4 --set full_attention_interval=2
mlx mlx-qwen3_5_moe-q3-g32-f16        --family qwen3_5_moe --bits 3 --group 32 --dtype f16 --seed 37 --tokens 32 --vocab 256 --layers 3 --hidden 64 --head-dim 32 --ffn 32 --experts 12 --topk 9 --set full_attention_interval=3 --set tie_word_embeddings=true
mlx mlx-deepseek_v3_yarn-q4-g64-bf16  --family deepseek_v3_yarn --bits 4 --group 64 --dtype bf16 --seed 38 --tokens 150 --vocab 160 --hidden 64 --heads 3 --topk 3 --set rope_scaling.original_max_position_embeddings=64 --set max_position_embeddings=2560 --set n_group=1
mlx mlx-deepseek_v3-q8-g32-f16-kvb    --family deepseek_v3 --bits 8 --group 32 --dtype f16 --plain-kv-b --seed 39 --tokens 40 --vocab 256 --hidden 64 --ffn 32 --set q_lora_rank=null --set kv_lora_rank=32 --set qk_nope_head_dim=32 --set v_head_dim=32
mlx mlx-kimi_k2-q3-g128-bf16-kvb      --family kimi_k2 --bits 3 --group 128 --dtype bf16 --plain-kv-b --seed 40 --tokens 40 --vocab 256 --layers 2 --experts 4 --heads 2 --set rms_norm_eps=0.01 --set kv_lora_rank=128 --set q_lora_rank=128
mlx mlx-glm4_moe-q5-g64-f32           --family glm4_moe --bits 5 --group 64 --dtype f32 --seed 41 --tokens 24 --vocab 256 --layers 2 --hidden 64 --head-dim 32 --topk 3 --set rms_norm_eps=0.01
mlx mlx-glm4_moe-mixed_2_6-g32-bf16   --family glm4_moe --recipe mixed_2_6 --group 32 --dtype bf16 --seed 42 --tokens 40 --vocab 256 --layers 4 --hidden 64 --head-dim 32 --ffn 32 --set attention_bias=false --set use_qk_norm=false
mlx mlx-qwen3_moe-mxfp4-bf16          --family qwen3_moe --mode mxfp4 --bits 4 --group 32 --dtype bf16 --seed 66 --tokens 40 --vocab 160 --layers 2 --hidden 64 --heads 3 --kv-heads 1 --head-dim 32 --experts 6 --topk 2 --ffn 96

mlx mlx-qwen3-q4-g64-bf16             --family qwen3 --bits 4 --group 64 --dtype bf16 --seed 211 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 6 --kv-heads 3 --head-dim 64 --dense-ffn 192 --set tie_word_embeddings=true
mlx mlx-qwen2-q8-g32-f16              --family qwen2 --bits 8 --group 32 --dtype f16 --seed 212 --tokens 40 --vocab 128 --layers 2 --hidden 96 --heads 6 --kv-heads 3 --dense-ffn 64
mlx mlx-qwen3_5-q4-g32-bf16           --family qwen3_5 --bits 4 --group 32 --dtype bf16 --seed 213 --tokens 150 --vocab 160 --hidden 64 --heads 3 --kv-heads 1 --head-dim 32 --dense-ffn 96 --extras --shards 2 --set linear_key_head_dim=16 --set linear_value_head_dim=16
mlx mlx-llama-mixed_3_6-g32-bf16      --family llama --recipe mixed_3_6 --group 32 --dtype bf16 --seed 214 --tokens 96 --vocab 128 --layers 4 --hidden 96 --heads 6 --kv-heads 3 --head-dim 32 --dense-ffn 96 --set attention_bias=true --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}'
mlx mlx-gpt_oss-mxfp4-bf16            --family gpt_oss --mode mxfp4 --bits 4 --group 32 --dtype bf16 --seed 221 --tokens 60 --vocab 128 --layers 2 --hidden 64 --heads 4 --kv-heads 2 --head-dim 32 --experts 6 --topk 3 --ffn 96 --set sliding_window=11 --set swiglu_limit=0.4 --set rope_scaling.original_max_position_embeddings=1024
mlx mlx-qwen3_moe-q5-g32-terse        --family qwen3_moe --bits 5 --group 32 --dtype bf16 --terse --seed 222 --tokens 40 --vocab 160 --layers 2 --hidden 64 --heads 3 --kv-heads 1 --head-dim 32 --experts 6 --topk 2 --ffn 32

# GGUF files, as llama.cpp's converters write them.
gguf gguf-qwen3moe-q8      --family qwen3_moe --seed 51 --tokens 24 --vocab 128 --layers 2 --hidden 64 --head-dim 32 --experts 6 --topk 2 --ffn 32 --types 'attn_q=Q8_0,attn_k=F16,attn_v=BF16,attn_output=Q8_0,exps=Q8_0,token_embd=F16'
gguf gguf-qwen3moe-k       --family qwen3_moe --seed 52 --tokens 24 --vocab 96 --layers 2 --hidden 256 --heads 4 --kv-heads 2 --head-dim 64 --experts 3 --topk 2 --ffn 256 --types 'attn_q\.=Q4_K,attn_k\.=Q5_K,attn_v\.=Q6_K,attn_output=Q3_K,0.ffn_(gate|up)_exps=Q4_K,0.ffn_down_exps=Q6_K,1.ffn_gate_exps=Q2_K,1.ffn_up_exps=Q5_K,1.ffn_down_exps=Q3_K,token_embd=Q4_K,^output\.=Q6_K'
gguf gguf-qwen3moe-iq      --family qwen3_moe --seed 53 --tokens 24 --vocab 96 --layers 3 --hidden 256 --heads 4 --kv-heads 1 --head-dim 64 --experts 3 --topk 2 --ffn 256 --set tie_word_embeddings=true --types 'attn_q\.=IQ4_XS,attn_k\.=IQ4_NL,attn_v\.=IQ3_S,attn_output=IQ3_XXS,0.ffn_(gate|up)_exps=IQ2_XXS,0.ffn_down_exps=IQ3_XXS,1.ffn_gate_exps=IQ2_XS,1.ffn_up_exps=IQ2_S,1.ffn_down_exps=IQ4_XS,2.ffn_(gate|up)_exps=MXFP4,2.ffn_down_exps=IQ3_S,token_embd=IQ4_XS'
gguf gguf-qwen3moe-gpu     --family qwen3_moe --seed 59 --tokens 40 --vocab 96 --layers 2 --hidden 256 --heads 4 --kv-heads 2 --head-dim 64 --experts 3 --topk 2 --ffn 256 --types 'attn_q\.=Q4_K,attn_k\.=IQ4_NL,attn_v\.=Q6_K,attn_output=IQ4_XS,0.ffn_(gate|up)_exps=Q4_K,0.ffn_down_exps=Q6_K,1.ffn_gate_exps=IQ2_XXS,1.ffn_up_exps=IQ3_XXS,1.ffn_down_exps=Q5_K,token_embd=Q4_K,^output\.=Q6_K'
gguf gguf-qwen3next        --family qwen3_next --seed 54 --tokens 150 --vocab 160 --hidden 64 --head-dim 32 --experts 6 --topk 3 --ffn 32 --fused --mtp --types 'attn_qkv=Q8_0,attn_gate=Q5_1,ssm_ba=F32,ssm_out=Q8_0,attn_q\.=Q5_0,attn_k\.=Q4_1,attn_v\.=Q8_0,attn_output=Q4_0,gate_up_exps=Q5_1,0.ffn_down_exps=Q8_0,ffn_down_exps=Q5_0,shexp=Q8_0,token_embd=Q8_0,^output\.=Q8_0'
gguf gguf-qwen35moe        --family qwen3_5_moe_text --seed 55 --tokens 150 --vocab 160 --layers 4 --hidden 96 --head-dim 32 --experts 6 --topk 2 --ffn 32 --mtp --split 2 --set linear_num_key_heads=2 --set linear_num_value_heads=6 --set linear_key_head_dim=32 --set linear_value_head_dim=32 --types 'attn_qkv=Q8_0,attn_gate=Q8_0,ssm_(alpha|beta)=F32,ssm_out=Q5_1,attn_q\.=Q8_0,attn_k\.=Q5_1,attn_v\.=Q8_0,attn_output=Q8_0,(1|3).ffn_.*_exps=MXFP4,ffn_.*_exps=Q4_0,shexp=Q8_0,token_embd=Q5_1,^output\.=Q8_0'
gguf gguf-deepseek2        --family deepseek_v3 --seed 56 --tokens 150 --vocab 160 --hidden 64 --heads 3 --experts 16 --topk 4 --ffn 32 --mtp --router-bias -1.5 --set n_group=4 --set topk_group=2 --set n_shared_experts=2 --set q_lora_rank=64 --set kv_lora_rank=64 --types 'attn_q_a=Q8_0,attn_q_b=Q5_0,attn_kv_a_mqa=Q8_0,attn_k_b=Q8_0,attn_v_b=Q5_1,attn_output=Q8_0,ffn_(gate|up)\.=Q4_1,ffn_down\.=Q5_0,ffn_down_exps=Q5_1,exps=Q4_0,shexp=Q8_0,token_embd=Q4_0,^output\.=Q8_0'
gguf gguf-deepseek2-kimi   --family kimi_k2 --seed 57 --tokens 150 --vocab 160 --layers 2 --hidden 64 --heads 4 --experts 6 --topk 3 --ffn 32 --set rope_scaling.original_max_position_embeddings=64 --set max_position_embeddings=2048 --set rope_scaling.mscale_all_dim=0.7 --set rope_scaling.mscale=0.7 --set kv_lora_rank=32 --set q_lora_rank=32 --types 'attn_.*=BF16,exps=Q8_0,shexp=F16,token_embd=F16,^output\.=F16'
gguf gguf-glm4moe          --family glm4_moe --seed 58 --tokens 150 --vocab 160 --layers 3 --hidden 64 --heads 4 --kv-heads 2 --head-dim 32 --experts 8 --topk 3 --ffn 32 --mtp --types 'attn_q\.=Q8_0,attn_k\.=Q8_0,attn_v\.=Q5_1,attn_output=Q5_0,ffn_(gate|up)\.=Q8_0,ffn_down\.=Q4_0,ffn_down_exps=Q8_0,exps=MXFP4,shexp=Q5_0,token_embd=Q8_0,^output\.=Q8_0'
gguf gguf-gpt-oss         --family gpt_oss --seed 81 --tokens 60 --vocab 128 --layers 3 --hidden 64 --heads 6 --kv-heads 2 --head-dim 24 --experts 6 --topk 3 --ffn 96 --types 'attn_q=Q8_0,attn_k=F16,exps\.weight=MXFP4,token_embd=Q8_0' --set sliding_window=11 --set rope_scaling.original_max_position_embeddings=1024
gguf gguf-minimax-m2      --family minimax_m2 --seed 82 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 3 --kv-heads 1 --head-dim 24 --experts 6 --topk 3 --ffn 32 --router-bias -1.5 --types 'attn_q\.=Q8_0,exps=Q4_0' --set rotary_dim=10
gguf gguf-hy_v3           --family hy_v3 --seed 83 --tokens 40 --vocab 128 --layers 3 --hidden 64 --heads 6 --kv-heads 3 --head-dim 16 --experts 7 --topk 3 --ffn 32 --mtp --types 'exps=Q8_0,shexp=Q5_0' --set num_shared_experts=2
gguf gguf-glm4-flash      --family glm4_moe_lite --seed 84 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 3 --experts 6 --topk 2 --ffn 32 --mtp --types 'attn_output=Q8_0,exps=Q4_1' --set v_head_dim=32
gguf gguf-glm-dsa         --family glm_moe_dsa --seed 85 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 3 --experts 6 --topk 2 --ffn 32 --types 'exps=Q8_0' --set first_k_dense_replace=1 --set index_topk=64
gguf gguf-deepseek32      --family deepseek_v32 --seed 86 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 3 --experts 8 --topk 2 --ffn 32 --types 'exps=Q8_0' --set index_topk=64 --set rope_scaling.original_max_position_embeddings=16 --set max_position_embeddings=640
gguf gguf-glm-dsa-sparse  --family glm_moe_dsa --seed 87 --tokens 48 --vocab 128 --layers 2 --hidden 64 --heads 3 --experts 6 --topk 2 --ffn 32 --types 'exps=Q8_0,attn_=BF16,indexer=BF16' --set first_k_dense_replace=1 --set index_n_heads=8 --set index_topk=16 --set 'indexer_types=["full","shared"]'
gguf gguf-deepseek32-sparse --family deepseek_v32 --seed 88 --tokens 48 --vocab 128 --layers 2 --hidden 64 --heads 3 --experts 8 --topk 2 --ffn 32 --types 'exps=Q8_0,attn_=BF16,indexer=BF16' --set index_n_heads=8 --set index_topk=16 --set rope_scaling.original_max_position_embeddings=16 --set max_position_embeddings=640
gguf gguf-qwen3vlmoe      --family qwen3_vl_moe --seed 87 --tokens 40 --vocab 128 --layers 2 --hidden 64 --head-dim 24 --experts 6 --topk 3 --ffn 32 --types 'exps=Q4_0'
gguf gguf-qwen2moe        --family qwen2_moe --seed 88 --tokens 40 --vocab 128 --layers 2 --hidden 64 --experts 6 --topk 3 --ffn 32 --types 'exps=Q8_0'
gguf gguf-mixtral         --family mixtral --seed 89 --tokens 40 --vocab 128 --layers 2 --hidden 96 --heads 6 --kv-heads 2 --experts 5 --topk 2 --ffn 32 --types 'attn_q=Q8_0,attn_k=Q8_0,exps=Q4_0'
gguf gguf-olmoe           --family olmoe --seed 90 --tokens 40 --vocab 128 --layers 2 --hidden 96 --heads 3 --kv-heads 3 --experts 6 --topk 3 --ffn 32 --types 'exps=Q8_0'
gguf gguf-qwen2           --family qwen2 --seed 215 --tokens 40 --vocab 128 --layers 2 --hidden 96 --heads 6 --kv-heads 3 --dense-ffn 64 --types 'attn_q\.=Q8_0,attn_v=Q5_0,ffn_down=Q4_0,ffn=Q8_0,token_embd=Q8_0' --set tie_word_embeddings=true
gguf gguf-qwen3           --family qwen3 --seed 216 --tokens 40 --vocab 128 --layers 2 --hidden 64 --heads 6 --kv-heads 3 --head-dim 32 --dense-ffn 96 --types 'attn_q\.=Q8_0,attn_k=F16,attn_output=Q5_1,ffn_gate=Q4_0,ffn_up=IQ4_NL,ffn_down=Q4_1,token_embd=Q8_0'
gguf gguf-qwen35          --family qwen3_5_text --seed 217 --tokens 150 --vocab 160 --layers 4 --hidden 64 --heads 3 --kv-heads 1 --head-dim 32 --dense-ffn 96 --mtp --set linear_num_key_heads=2 --set linear_num_value_heads=6 --set linear_key_head_dim=16 --set linear_value_head_dim=16 --types 'attn_qkv=Q8_0,attn_gate=Q8_0,ssm_(alpha|beta)=F32,ssm_out=Q5_1,attn_q\.=Q8_0,attn_output=Q8_0,ffn_down=Q5_0,ffn=Q4_0,token_embd=Q5_1,^output\.=Q8_0'
gguf gguf-llama           --family llama --seed 218 --tokens 96 --vocab 128 --layers 2 --hidden 96 --heads 6 --kv-heads 3 --head-dim 32 --dense-ffn 96 --types 'attn_q=Q8_0,attn_k=Q8_0,ffn_down=Q4_0,ffn=Q8_0,token_embd=F16' --set attention_bias=true --set mlp_bias=true --set max_position_embeddings=256 --set 'rope_scaling={"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}'
gguf gguf-llama-linear    --family llama --seed 219 --tokens 40 --vocab 128 --layers 2 --hidden 96 --heads 3 --kv-heads 3 --dense-ffn 64 --types 'attn_q=Q8_0,ffn=Q8_0' --set head_dim=null --set tie_word_embeddings=true --set rope_theta=10000.0 --set 'rope_scaling={"rope_type":"linear","factor":4.0}'

# What mlx-lm makes of published-style cases.
if wanted quantised.json; then
  python3 ../tools/oracle/quantised.py --golden . --out quantised.json
fi
