"""The workflows of .github/: pinned actions, the least permissions, and targets that the Makefile has."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github/workflows").iterdir())
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
JOBS = {
    f"{name}.{job}": content
    for name, workflow in WORKFLOWS.items()
    for job, content in workflow["jobs"].items()
}
PINNED = re.compile(r"(?:- )?uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)")


def test_every_action_is_pinned_by_the_hash_of_one_version():
    pins = defaultdict(set)
    for path in FILES:
        lines = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
        assert lines
        for line in lines:
            match = PINNED.fullmatch(line)
            assert match, f"{path.name}: {line}"
            pins[match[1]].add(match.group(2, 3))
    assert {action: len(versions) for action, versions in pins.items() if len(versions) > 1} == {}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_grants_nothing_by_itself(workflow):
    assert WORKFLOWS[workflow]["permissions"] == {}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_reads_the_sources_and_only_the_upload_gets_a_token(job):
    wanted = {"id-token": "write"} if job == "release.upload" else {"contents": "read"}
    assert JOBS[job]["permissions"] == wanted
    assert ("environment" in JOBS[job]) == (job == "release.upload")
    assert JOBS[job]["timeout-minutes"] <= 360


@pytest.mark.parametrize("job", JOBS)
def test_no_step_keeps_credentials_or_pastes_a_value_into_a_command(job):
    for step in JOBS[job]["steps"]:
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_every_target_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {name for names in targets for name in names.split()}
    called = set()
    for job in JOBS.values():
        called |= set(job.get("strategy", {}).get("matrix", {}).get("target", []))
        for step in job["steps"]:
            words = step.get("run", "").split()
            if words[:1] == ["make"]:
                called |= {word for word in words[1:] if word.isalpha()}
    assert called <= targets
    assert {"check", "test", "slow", "examples", "properties", "fuzz", "audit", "wheel"} <= called
