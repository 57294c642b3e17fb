"""The configuration of a pool under systemd with one declared card and no idle workload; `{folder}` is its runtime folder."""

CONFIG = """
runtime_dir: {folder}
supervisor: systemd
card_source: declared
cards: [{{slot: c0, uuid: GPU-0, memory_mib: 1}}]
idle_workload: {{driver: none}}
models: {{m: {{backend: command, memory_mib: 1, argv: [x]}}}}
"""
