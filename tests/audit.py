"""`make audit`: known vulnerabilities of all installed dependencies, by pip-audit.

    pip-audit                                          exit status
    -------------------------------------------------  --------------------------
    names a vulnerability                              1
    was told of every dependency, and names none       0
    was not told of every dependency, or not in 60 s   2, with `--if-reachable` 0

pip-audit itself ends with 1 in the first case and in many of the last one, so its report is judged.
All other arguments are passed to it, such as `--vulnerability-service osv`.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

SECONDS_MAX = 60.0

_PLACE = Path(__file__).parent.parent / ".cache" / "audit"
_PROGRAM = _PLACE / "bin" / "pip-audit"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Verdict(NamedTuple):
    """Exit status of an audit, and its line for people."""

    status: int
    text: str


def judge(report: str, trouble: str) -> Verdict:
    """The verdict of a report of pip-audit, as the table above.

    Args:
        report: its JSON; empty if it made none.
        trouble: why it made none.
    """
    if not report:
        return Verdict(2, f"audit: the service cannot be asked: {trouble}")
    dependencies = json.loads(report)["dependencies"]
    found = [
        f"{each['name']} {each['version']}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'none'}"
        for each in dependencies
        for fault in each.get("vulns", ())
    ]
    if found:
        return Verdict(1, "\n".join(("audit: there are known vulnerabilities", *found)))
    skipped = [each["skip_reason"] for each in dependencies if "skip_reason" in each]
    if skipped:
        text = f"audit: the service does not know {len(skipped)} of {len(dependencies)} dependencies: {skipped[0]}"
        return Verdict(2, text)
    return Verdict(0, f"audit: no known vulnerabilities of {len(dependencies)} dependencies")


def audit(arguments: list[str]) -> Verdict:
    """Install pip-audit if need be, and ask."""
    report, errors, frozen = (_PLACE / name for name in ("report.json", "errors.txt", "frozen.txt"))
    _PLACE.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    ends_at = time.monotonic() + SECONDS_MAX
    python = _PLACE / "bin" / "python"
    make = [sys.executable, "-m", "venv", "--without-pip", str(_PLACE)]
    install = [*_PIP, "--python", str(python), "install", "--quiet", "pip-audit"]
    options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
    ask = [str(_PROGRAM), *options, "--output", str(report), "--requirement", str(frozen), *arguments]
    with errors.open("w") as told:
        try:
            with frozen.open("w") as names:
                subprocess.run([*_PIP, "freeze", "--exclude-editable"], check=True, stdout=names)
            for command in [ask] if _PROGRAM.exists() else [make, install, ask]:
                left = ends_at - time.monotonic()
                subprocess.run(command, check=True, stdout=told, stderr=told, timeout=left)
        except subprocess.TimeoutExpired:
            return judge("", f"no answer within {SECONDS_MAX:.0f} s")
        except subprocess.CalledProcessError:
            pass
    lines = errors.read_text().strip().splitlines()
    return judge(report.read_text() if report.exists() else "", lines[-1] if lines else "it says nothing")


def main(arguments: list[str]) -> int:
    """Audit; returns the exit status."""
    verdict = audit([each for each in arguments if each != "--if-reachable"])
    print(verdict.text)
    return 0 if verdict.status == 2 and "--if-reachable" in arguments else verdict.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
