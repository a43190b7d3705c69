// SPDX-License-Identifier: Apache-2.0

// Package records reads files of records: texts, chats, pairs, labels, one record a row.
//
// A [Set] is a number of records that can be read in any order: [Set.Read] returns record i. So a
// sampler of package data orders records as it orders any samples, and nothing is held in memory but
// what is being read.
//
// [Open] takes a file, a directory, or a glob. It finds the format by the file's name and beginning:
//
//   - lines of JSON (.jsonl, .ndjson) and lists of JSON objects (.json), where they lie. An index
//     has where each record begins. It is made once and kept in a directory of the user's cache.
//   - the same compressed by gzip or zstd (.jsonl.gz, .jsonl.zst), and Parquet (.parquet). These
//     cannot be read at any place, so they are copied once to a file of small blocks beside the index.
//   - tar files of WebDataset (.tar), whose index has where the members of each record begin, and
//     compressed ones (.tar.gz, .tgz, .tar.zst). Members next to each other whose names are alike up to
//     the first dot are one record, and the rest of the name is the field: 17.txt is the field txt of
//     record 17. Fields of a .json member are fields of the record.
//
// A [Record] is a map from names of fields to values: string, int64, float64, bool, nil, [Record],
// []any of these, and []byte for members of WebDataset such as images.
//
// What cannot be read is an *[Error] with the file, the line and the field. A set does not change while
// it is open: a file that does is found out by its size or by what stands before a record. A set is safe
// for concurrent use. Close it after use.
package records
