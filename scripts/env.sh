# The other scripts source this file. `couce_env EXTRAS` makes .venv and installs CouCE with these
# extras. It returns at once if this was done before and pyproject.toml is unchanged.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

couce_env() { # couce_env EXTRAS
  local extras=$1 stamp=.venv/.couce-$1 wanted python=${PYTHON:-python3}
  wanted=$(cksum <pyproject.toml)
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null && return
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "CouCE needs Python 3.11 or newer; set PYTHON to the path of one." >&2
    return 1
  }
  echo "Installing couce[$extras] into .venv. This happens once; with torch it takes several GB..."
  if command -v uv >/dev/null; then
    [ -x .venv/bin/python ] || uv venv --quiet --python \
      "$("$python" -c 'import sys; print(sys.executable)')" .venv
    uv pip install --quiet --python .venv/bin/python --editable ".[$extras]"
  else
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
  fi
  echo "$wanted" >"$stamp"
}
