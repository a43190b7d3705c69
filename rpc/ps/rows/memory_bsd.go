// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package rows

func adviseHuge([]byte) {}
