// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

var channelTables = [...]*channelKernels{portable: &portableChannel, avx2: &portableChannel, avx512: &portableChannel}
