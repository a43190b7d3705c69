// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package rows

func reserve(size int) ([]byte, error) { return make([]byte, size), nil }

func release([]byte) error { return nil }
