// SPDX-License-Identifier: Apache-2.0

// Package models has well-known networks as plain files that read like the
// papers. Each is a struct of modules from package nn with the parameter names
// of its PyTorch or Hugging Face original, so that weights move both ways.
package models
