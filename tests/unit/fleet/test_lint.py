"""Every row of table 0 of the facts (what the first report gets wrong) is a rule here, or is met elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.lint import CONFIG_RULES, RULES, Severity, lint, lint_config
from tests.unit.fleet.build import fleet, values, with_engine, with_env

ROOT = Path(__file__).parents[3]

# Rows that are no lint: what meets them, and the file that does. The rest of the rows have a rule.
ELSEWHERE = {
    "0.1": ("a dead engine exits 0 and is restarted: RestartForceExitStatus of the unit", "fleetctl/commands/units.py"),
    "0.5": ("one Access-Control-Allow-Origin: the balancer hides the engine's", "units/nginx.conf.j2"),
    "0.7": ("only sessions of a lost instance move: fail-over in rendezvous order", "fleetctl/balancer/routing.py"),
    "0.8": ("/health is computed from live state", "units/lua"),
    "0.15": ("HBM is read from npu-smi, never from the name 910B4", "fleetctl/observe/npu_smi.py"),
    "0.17": ("shares are computed, and n shown: the report's generator", None),
    "0.18": ("chi-square instead of a fixed CV: the distribution bench", None),
    "0.20": ("without session and bearer the client's address is the key", "fleetctl/balancer/routing.py"),
    "0.21": ("checks in Lua, proxy_buffering off", "units/nginx.conf.j2"),
    "0.22": ("docker run in the foreground, under systemd", "fleetctl/commands/units.py"),
    "0.23": ("processes are stopped by pid, after port and executable", "fleetctl/commands/scripts/clean_process.sh"),
    "0.26": ("needs the model's config.json: lint_config", "fleetctl/fleet/rules/model.py"),
    "0.27": ("an instance joins after its first completion, not after its unit", "fleetctl/plan"),
}

tree = values()

# rule: (a fleet that breaks it, a fleet near by that does not)
CASES: dict[str, tuple[Fleet, Fleet]] = {
    "shutdown-timeout-zero": (with_engine(shutdown_timeout=0), with_engine(shutdown_timeout=30)),
    "shutdown-timeout-long": (with_engine(shutdown_timeout=700), with_engine(shutdown_timeout=600)),
    "secret-in-engine": (with_engine(root_path="sk-abcdef0123"), with_engine(root_path="/sk")),
    "secret-in-environment": (with_env(MY_TOKEN="x"), with_env(TOKENIZERS_PARALLELISM="false")),
    "unguarded-route": (fleet(balancer__paths=["/v1/", "/invocations"]), fleet(balancer__paths=["/v1/chat/"])),
    "keepalive-mismatch": (with_env(VLLM_HTTP_TIMEOUT_KEEP_ALIVE="4"), with_env(VLLM_HTTP_TIMEOUT_KEEP_ALIVE=None)),
    "connect-timeout-long": (fleet(balancer__connect_timeout=300), fleet(balancer__connect_timeout=5)),
    "read-timeout-short": (fleet(balancer__read_timeout=30), fleet(balancer__read_timeout=60)),
    "shm-size-missing": (fleet(instances__shm_size="64m"), fleet(instances__shm_size="1g")),
    "visible-devices-typed": (with_env(ASCEND_RT_VISIBLE_DEVICES="0,1"), with_env(ASCEND_LAUNCH_BLOCKING="0")),
    "devices-typed": (with_engine(device_ids="0,1"), with_engine(device_ids=None)),
    "quantization-explicit": (with_engine(quantization=None), fleet(engine={"tensor-parallel-size": 2}, model__name="Qwen3", model__path="/m/Qwen3")),
    "block-size-ignored": (with_engine(block_size=16), with_engine(block_size=None)),
    "random-weights": (fleet(model__random_weights=True), fleet(model__random_weights=False)),
    "image-not-pinned": (fleet(), fleet(image__digest="sha256:" + "a" * 64)),
    "image-wrong-suffix": (fleet(image__reference="quay.io/ascend/vllm-ascend:v0.23.0-a3-openeuler"), fleet(image__reference="quay.io/ascend/vllm-ascend:v0.23.0")),
    "image-wrong-platform": (fleet(image__reference="vllm/vllm-openai:v0.23.0"), fleet(image__reference="docker.io/our/vllm-openai-npu:1")),
    "cpuset-off": (fleet(instances__cpuset="off"), fleet(instances__cpuset="auto")),
    "mtp-tokens-measured": (fleet(speculative__tokens=4), fleet(speculative__tokens=3)),
    "gpu-memory-utilization-high": (with_engine(gpu_memory_utilization=0.95), with_engine(gpu_memory_utilization=0.92)),
    "allocation-overlap": (fleet(instances__per_machine=5), fleet(instances__per_machine=3)),
    "parallel-size-mismatch": (with_engine(tensor_parallel_size=4), fleet(instances__per_machine=2, instances__devices=4, engine={"tensor-parallel-size": 2, "pipeline-parallel-size": 2})),
    "public-plain-http": (fleet(balancer__public_url="http://models.example.com:2219"), fleet(balancer__public_url="http://10.1.2.3:2219")),
    "speculative-tokens": (with_engine(cudagraph_capture_sizes=[5, 8]), with_engine(cudagraph_capture_sizes=[5, 10, 20])),
    "auto-tool-choice-needs-parser": (with_engine(tool_call_parser=None), with_engine(tool_call_parser=None, enable_auto_tool_choice=None)),
    "disable-log-requests-removed": (with_engine(disable_log_requests=True), with_engine(enable_log_requests=False)),
    "swap-space-removed": (with_engine(swap_space=4), with_engine()),
    "flag-type": (fleet().with_overrides(Overrides(engine=(("max-num-seqs", "many"),))), with_engine(max_num_seqs=1)),
    "engine-tls": (with_engine(ssl_keyfile="/k"), with_engine()),
    "engine-death-keepalive": (with_env(VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1"), with_env(VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="0")),
    "dev-mode-set": (with_env(VLLM_SERVER_DEV_MODE="1"), with_env(VLLM_SERVER_DEV_MODE="0")),
    "internal-port-variable": (with_env(VLLM_PORT="8000"), with_env()),
    "allocator-conflict": (with_env(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True, max_split_size_mb:256"), with_env(PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:256")),
    "obsolete-variable": (with_env(VLLM_USE_V1="1"), with_env()),
    "engine-ready-timeout-short": (with_env(VLLM_ENGINE_READY_TIMEOUT_S=None), with_env(VLLM_ENGINE_READY_TIMEOUT_S="1800")),
    "start-timeout-short": (fleet(rollout__start_timeout=60), fleet(rollout__start_timeout=600)),
}  # fmt: skip


def rules_of(shape: Fleet) -> set[str]:
    return {finding.rule for finding in lint(shape)}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_rule_finds_what_it_is_named_after_and_nothing_near_by(rule: str) -> None:
    broken, sound = CASES[rule]
    assert rule in rules_of(broken)
    assert rule not in rules_of(sound)


def test_every_case_has_a_rule() -> None:
    assert CASES.keys() == RULES.keys()


def test_every_row_of_table_0_has_a_rule_or_is_met_elsewhere() -> None:
    ruled = {rule.row for rule in RULES.values()}
    rows = {f"0.{number}" for number in range(1, 29)}
    assert rows - ruled == ELSEWHERE.keys()
    assert not ruled & ELSEWHERE.keys()


@pytest.mark.parametrize("row", sorted(row for row, (_, path) in ELSEWHERE.items() if path))
def test_what_meets_a_row_elsewhere_exists(row: str) -> None:
    assert (ROOT / str(ELSEWHERE[row][1])).exists()


def test_the_shipped_inventory_has_no_error_and_few_warnings() -> None:
    found = lint(fleet())
    assert not [finding for finding in found if finding.severity is Severity.ERROR]
    assert [(finding.rule, finding.severity) for finding in found] == [
        ("image-not-pinned", Severity.WARNING),
        ("mtp-tokens-measured", Severity.NOTE),
    ]


def test_errors_come_first_and_every_finding_says_what_to_write() -> None:
    found = lint(with_env(VLLM_SERVER_DEV_MODE="1", VLLM_USE_V1="1"))
    assert found[0].severity is Severity.ERROR
    assert all(finding.fix and finding.message and finding.where for finding in found)
    assert str(found[0]) == (
        "error: instances.env.VLLM_SERVER_DEV_MODE: opens unguarded control routes [dev-mode-set]\n  fix: leave it out"
    )


def test_the_overrides_of_a_release_are_linted_as_well() -> None:
    shape = fleet(image__digest="sha256:" + "a" * 64)
    assert "speculative-tokens" in rules_of(shape.with_overrides(Overrides(tokens=16)))
    assert "image-wrong-suffix" in rules_of(shape.with_overrides(Overrides(image="quay.io/ascend/vllm-ascend:x-310p")))
    assert "parallel-size-mismatch" in rules_of(shape.with_overrides(Overrides(engine=(("tensor_parallel_size", 8),))))


def test_an_image_for_the_fleets_own_hardware_is_right() -> None:
    shape = fleet(accelerator__soc="a3", image__reference="quay.io/ascend/vllm-ascend:v0.23.0-a3")
    assert "image-wrong-suffix" not in rules_of(shape)


def test_capture_sizes_in_the_compilation_config_are_seen_in_both_spellings() -> None:
    for config in ({"cudagraph_capture_sizes": [4]}, '{"cudagraph_capture_sizes": [4]}'):
        found = [
            finding for finding in lint(with_engine(compilation_config=config)) if finding.rule == "speculative-tokens"
        ]
        assert [finding.where for finding in found] == ["engine.compilation-config"]
        assert found[0].fix == "sizes 5, 10, 20, 40"


CONFIG = {"max_position_embeddings": 262144}


@pytest.mark.parametrize(
    ("flags", "config", "expected"),
    [
        ({}, CONFIG, set()),
        ({"max_model_len": 131072}, {"max_position_embeddings": 40960}, {"max-model-len-vs-config"}),
        ({"max_model_len": "128K"}, {"max_position_embeddings": 131072}, set()),
        ({"max_model_len": "200k"}, {"max_position_embeddings": 131072}, {"max-model-len-vs-config"}),
        ({"max_model_len": "auto"}, {"max_position_embeddings": 10}, set()),
        ({"max_model_len": None}, {"max_position_embeddings": 10}, set()),
        ({"max_model_len": 131072}, {"text_config": {"max_position_embeddings": 40960}}, {"max-model-len-vs-config"}),
        ({"max_model_len": 131072, "hf_overrides": {"rope_parameters": {"rope_type": "yarn"}}}, {"max_position_embeddings": 40960}, set()),
        ({"max_model_len": 131072}, {"max_position_embeddings": 40960, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768}}, set()),
        ({"max_model_len": 131072}, {"max_position_embeddings": "many"}, set()),
        ({}, {**CONFIG, "vision_config": {}}, {"media-domains-open"}),
        ({"allowed_media_domains": ["a.example"]}, {**CONFIG, "vision_config": {}}, set()),
        ({"language_model_only": True}, {**CONFIG, "vision_config": {}}, set()),
    ],
)  # fmt: skip
def test_the_flags_are_compared_with_the_models_own_config(
    flags: dict[str, object], config: dict[str, object], expected: set[str]
) -> None:
    assert {finding.rule for finding in lint_config(with_engine(**flags), json.dumps(config))} == expected


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '"x"'])
def test_a_config_that_cannot_be_read_is_an_error(text: str) -> None:
    assert [finding.rule for finding in lint_config(fleet(), text)] == ["config-unreadable"]


def test_quantization_needs_its_description_beside_the_config() -> None:
    assert [f.rule for f in lint_config(fleet(), json.dumps(CONFIG), described=False)] == ["quantization-vs-config"]
    assert lint_config(fleet(), json.dumps(CONFIG), described=True) == []
    assert set(CONFIG_RULES) >= {"quantization-vs-config", "max-model-len-vs-config"}
