#!/usr/bin/env bash
# Verifies the models of a CI job: the step "Verify" of action.yml, also for other CI systems.
#
# MODELS    paths or globs, one on each line
# ARGS      further arguments of specrun verify
# REPORTS   folder for the reports [default: specrun-verify in RUNNER_TEMP or in the current folder]
#
# On GitHub, annotations name file and tensor, and the summaries go to the page of the job. The exit code is
# that of specrun: 0 all models pass, 1 a check failed, 2 a model could not be verified.
set -euo pipefail

reports=${REPORTS:-${RUNNER_TEMP:-.}/specrun-verify}
mkdir -p "$reports"
if [ -n "${GITHUB_OUTPUT:-}" ]; then
    echo "reports=$reports" >>"$GITHUB_OUTPUT"
fi
read -ra args <<<"${ARGS:-}"

# Reports an error of the job: for GitHub as an annotation of a file.
fail() {
    local file=$1 message=$2
    if [ -n "${GITHUB_ACTIONS:-}" ]; then
        message=${message//'%'/%25}
        echo "::error file=$file,title=could not run::${message//$'\n'/%0A}"
    else
        echo "error: $message" >&2
    fi
}

worst=0
n=0
while IFS= read -r pattern; do
    pattern=${pattern#"${pattern%%[![:space:]]*}"}
    pattern=${pattern%"${pattern##*[![:space:]]}"}
    [ -n "$pattern" ] || continue
    mapfile -t found < <(compgen -G "$pattern" | sort)
    if [ ${#found[@]} -eq 0 ]; then
        fail "$pattern" "$pattern: no such file"
        worst=2
        continue
    fi
    for model in "${found[@]}"; do
        n=$((n + 1))
        name=$reports/$n-$(basename "$model" .gguf)
        formats=(--report "$name.json" --junit "$name.xml" --sarif "$name.sarif" --html "$name.html")
        if [ -n "${GITHUB_ACTIONS:-}" ]; then
            formats+=(--github -)
        fi
        if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
            formats+=(--markdown "$GITHUB_STEP_SUMMARY")
        fi
        code=0
        # The first line of stderr that begins with "error: " is the reason of exit code 2.
        specrun verify "$model" "${args[@]}" "${formats[@]}" --overwrite 2>"$name.log" || code=$?
        cat "$name.log" >&2
        if [ $code -gt 1 ]; then
            reason=$(sed -n 's/^error: //p' "$name.log" | head -n 1)
            fail "$model" "${reason:-$model: exit code $code}"
        fi
        if [ $code -gt $worst ]; then
            worst=$code
        fi
    done
done <<<"${MODELS:?paths of the models}"
exit $worst
