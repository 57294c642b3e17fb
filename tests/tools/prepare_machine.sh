#!/usr/bin/env bash
# Installs what the simulated hosts need on this machine, and says so in one line. Does nothing when it is all there.
set -euo pipefail

declare -A needs=(
    [podman]=podman [mmdebstrap]=mmdebstrap [gcc]=gcc [make]=make [ssh]=openssh-client [nft]=nftables [iptables]=iptables [ip]=iproute2 [git]=git
    [nginx]=nginx-light [systemd-analyze]=systemd [node]=nodejs
)
missing=()
for command in "${!needs[@]}"; do
    command -v "$command" >/dev/null || missing+=("${needs[$command]}")
done
# podman's network needs its own helper; it is no command on the PATH
[ -x /usr/lib/podman/netavark ] || missing+=(netavark)
[ -f /usr/include/stdlib.h ] || missing+=(libc6-dev)
[ -f /usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so ] || missing+=(libnginx-mod-http-headers-more-filter)
# Debian's Python comes without what makes virtual environments
for python in python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import venv, ensurepip' 2>/dev/null && break
done || missing+=(python3-venv)
[ "${#missing[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "The simulated hosts need: ${missing[*]}. Install them with this system's package manager, or run make as root on Debian or Ubuntu." >&2
    exit 1
fi
echo "Installing ${missing[*]} by apt: podman boots the simulated hosts, mmdebstrap makes their base images, nginx, systemd-analyze and node check what the roles render, the rest builds and connects the hosts"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || { tail -n 30 "$log" >&2; exit 1; }
