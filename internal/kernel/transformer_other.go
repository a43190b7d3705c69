// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

var transformerTables = [...]*transformerKernels{portable: &portableTransformer, avx2: &portableTransformer, avx512: &portableTransformer}
