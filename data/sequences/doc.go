// SPDX-License-Identifier: Apache-2.0

// Package sequences makes token sequences of records: of texts, of prompts with completions, of chats.
//
// [Open] opens one or several sources. Each is a records.Set whose records have one [Kind], which the
// names of their fields tell. A sequence is the tokens of a record and which of them the loss counts.
// [Data.Training] is a data.Dataset of the sequences to train on, and [Data.Held] has those that are held
// out. A record of a source is held out by its number alone: every twentieth is.
//
// A sequence has at most [Options.Context] inputs. A longer text is cut there, and so is a longer
// completion. A prompt that leaves no room for its completion is an error. [Pack] puts several sequences
// into one row, so that less is filled up; then a longer text becomes several sequences, and none of it
// is lost.
//
// Which samples a step takes is a matter of samplers: package data orders the sequences of a single
// source by data.Stream, those of several sources by data.Mixture.
package sequences
