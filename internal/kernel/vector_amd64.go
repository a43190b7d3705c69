// SPDX-License-Identifier: Apache-2.0

package kernel

var vectorTables = [...]*vectorKernels{portable: &portableVector, avx2: &portableVector, avx512: &portableVector}
