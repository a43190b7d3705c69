// SPDX-License-Identifier: Apache-2.0

// Package deploy checks the files of this directory: it decodes the manifests by the types of
// those who read them, and runs the commands that stand in them in containers, as the users and
// under the limits that they name. The board in grafana/ is checked by package monitor/metrics.
package deploy
