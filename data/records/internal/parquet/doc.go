// SPDX-License-Identifier: Apache-2.0

// Package parquet reads columns of Parquet files: the footer, pages of both versions, all encodings
// and codecs that pyarrow, Spark and polars write today. It knows the types that a record can have,
// and names those of other columns.
//
//	https://github.com/apache/parquet-format
//
// A column is read value by value. Only a page and a dictionary lie in memory, so what a damaged file
// says of its size is not believed: memory follows the bytes that are there.
package parquet
