"""What experience says about values that are well formed: one small rule for each row of facts/ascend-vllm.md."""
