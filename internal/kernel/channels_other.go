// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

var channelTables = [...]*channelKernels[float32]{portable: &portableChannel, avx2: &portableChannel, avx512: &portableChannel}

func channelLow() *channelKernels[uint16] { return nil }
