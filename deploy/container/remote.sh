#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Starts the SSH server and JupyterLab of Dockerfile.jupyter. If the server ends, JupyterLab gets
# SIGTERM, so that the container ends and is started again.
set -eu
home=/runs/.sshd
mkdir -p "$home" && chmod 700 "$home"
[ -s /keys/authorized_keys ] || { echo "remote: put your public key at /keys/authorized_keys" >&2; exit 2; }
cp /keys/authorized_keys "$home/authorized_keys" && chmod 600 "$home/authorized_keys"
[ -e "$home/host_key" ] || ssh-keygen -q -t ed25519 -N '' -f "$home/host_key"
echo "remote: the host key is $(ssh-keygen -lf "$home/host_key.pub")"
( /usr/sbin/sshd -D -e -f /etc/cohort/sshd_config || true; kill -TERM $$ ) &
exec jupyter lab --no-browser --ip 127.0.0.1 --port 8888 --ServerApp.root_dir=/runs
