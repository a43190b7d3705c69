// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

var vectorTables = [...]*vectorKernels{portable: &portableVector, avx2: &portableVector, avx512: &portableVector}
