# npu_info: who holds which accelerator, asked on the host; npu-smi can hang, so never without a limit.
timeout 10 npu-smi info
