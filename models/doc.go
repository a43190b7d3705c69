// SPDX-License-Identifier: Apache-2.0

// Package models has well-known networks as plain files that read like the
// papers. Each is a struct of modules from package nn with the parameter names
// of its PyTorch or Hugging Face original, so that weights move both ways.
//
// # Making one
//
// A constructor takes an nn.Build, which says where parameters live and what
// their first values are drawn from, and a configuration. A configuration that
// makes no model is an error of its Validate, and makes the constructor panic:
// validate what comes from a file or a user. On tensor.Meta a model of any size
// is built without memory, to plan with.
//
// Models with one input and one output are nn.Module and called by c.Call; the
// others are nn.ModuleN, whose ForwardN says what goes in and what comes out.
//
// # Weights of others
//
// [LoadHuggingFace] opens a folder of a GPT-2, of an [Encoder], or of a decoder such as Llama,
// Qwen, SmolLM, Gemma or Mixtral (see [DecoderLM]), and [SaveHuggingFace] writes one; config.json beside the weights decides the
// configuration. Each of its keys is honoured, changes nothing in what the model
// computes, or is refused by name; unknown ones are told ([WithNotice]).
// [LoadSentenceEncoder] opens a folder of sentence-transformers.
// ResNets have torchvision's names: checkpoint.LoadTensors reads their weights
// from a safetensors file.
package models
