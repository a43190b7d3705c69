// SPDX-License-Identifier: Apache-2.0

package device

// Op is an operation with a kernel of its own, where the primitives of [Kernels]
// would pass over memory several times. This file lists all of them. A struct
// holds the parameters of a call; with the arrays that its comment names it says
// everything that a kernel needs. A device finds its kernel by the struct's type.
//
// A comment lists the arguments in order, results first. "w" marks what is
// written, "rw" what is read and written, "opt" what may be absent (a nil Ptr);
// arrays are contiguous and float32 unless it says otherwise. "low" is float32 or
// bfloat16, and then computed in float32 and rounded once. [n …] are shapes.
type Op interface {
	opName() string
}

// OpName is what messages and profiles call an operation.
func OpName(op Op) string { return op.opName() }

// CopyOp returns an operation that shares no memory with op, for a device that
// runs it later: the caller may use lists of op again after the call. A check of
// op is a new one, of the same site.
func CopyOp(op Op) Op {
	if o, ok := op.(interface{ copied() Op }); ok {
		return o.copied()
	}
	return op
}

// CheckOf returns the check of an operation, nil if it has none.
func CheckOf(op Op) *Check {
	if o, ok := op.(interface{ check() *Check }); ok {
		return o.check()
	}
	return nil
}

// The names of the operations.
func (Attention) opName() string           { return "attention" }
func (AttentionGrad) opName() string       { return "attention grad" }
func (AttentionDropout) opName() string    { return "attention dropout" }
func (AttentionMerge) opName() string      { return "attention merge" }
func (CausalMask) opName() string          { return "causal mask" }
func (RoPE) opName() string                { return "rope" }
func (LayerNorm) opName() string           { return "layer norm" }
func (LayerNormGrad) opName() string       { return "layer norm grad" }
func (RMSNorm) opName() string             { return "rms norm" }
func (RMSNormGrad) opName() string         { return "rms norm grad" }
func (GroupNorm) opName() string           { return "group norm" }
func (GroupNormGrad) opName() string       { return "group norm grad" }
func (BatchNorm) opName() string           { return "batch norm" }
func (BatchNormApply) opName() string      { return "batch norm apply" }
func (BatchNormRunning) opName() string    { return "batch norm running" }
func (BatchNormMoments) opName() string    { return "batch norm moments" }
func (BatchNormStats) opName() string      { return "batch norm stats" }
func (BatchNormGrad) opName() string       { return "batch norm grad" }
func (BatchNormGradSums) opName() string   { return "batch norm grad sums" }
func (BatchNormGradApply) opName() string  { return "batch norm grad apply" }
func (Conv2d) opName() string              { return "conv2d" }
func (Conv2dInputGrad) opName() string     { return "conv2d input grad" }
func (Conv2dWeightGrad) opName() string    { return "conv2d weight grad" }
func (Conv2dBiasGrad) opName() string      { return "conv2d bias grad" }
func (MaxPool) opName() string             { return "max pool" }
func (MaxPoolGrad) opName() string         { return "max pool grad" }
func (MaxPoolPick) opName() string         { return "max pool pick" }
func (AvgPool) opName() string             { return "avg pool" }
func (AvgPoolGrad) opName() string         { return "avg pool grad" }
func (Softmax) opName() string             { return "softmax" }
func (SoftmaxGrad) opName() string         { return "softmax grad" }
func (LogSumExp) opName() string           { return "log sum exp" }
func (ClassTargets) opName() string        { return "class targets" }
func (CrossEntropy) opName() string        { return "cross entropy" }
func (MaxAndSumExp) opName() string        { return "max and sum exp" }
func (CrossEntropyGrad) opName() string    { return "cross entropy grad" }
func (Probabilities) opName() string       { return "probabilities" }
func (SwiGLU) opName() string              { return "swiglu" }
func (SwiGLUGrad) opName() string          { return "swiglu grad" }
func (Pointwise) opName() string           { return "pointwise" }
func (DropoutMask) opName() string         { return "dropout mask" }
func (DropoutMaskRows) opName() string     { return "dropout mask rows" }
func (Dropout) opName() string             { return "dropout" }
func (LSTMCell) opName() string            { return "lstm cell" }
func (LSTMCellGrad) opName() string        { return "lstm cell grad" }
func (GRUCell) opName() string             { return "gru cell" }
func (GRUCellGrad) opName() string         { return "gru cell grad" }
func (CheckIndices) opName() string        { return "check indices" }
func (IndexSelect) opName() string         { return "index select" }
func (IndexAdd) opName() string            { return "index add" }
func (GatherElems) opName() string         { return "gather" }
func (ScatterElems) opName() string        { return "scatter" }
func (ScatterAddElems) opName() string     { return "scatter add" }
func (Concat) opName() string              { return "cat" }
func (Triangle) opName() string            { return "triangle" }
func (AddRegion) opName() string           { return "add region" }
func (SumRows) opName() string             { return "sum rows" }
func (GroupIDs) opName() string            { return "group ids" }
func (GroupRows) opName() string           { return "group rows" }
func (LimitGroups) opName() string         { return "limit groups" }
func (SpreadRows) opName() string          { return "spread rows" }
func (CombineRows) opName() string         { return "combine rows" }
func (CombineWeights) opName() string      { return "combine weights" }
func (GroupedProduct) opName() string      { return "grouped product" }
func (GroupedWeightGrad) opName() string   { return "grouped weight grad" }
func (GroupSums) opName() string           { return "group sums" }
func (SumSegments) opName() string         { return "row gradient" }
func (EmbeddingBag) opName() string        { return "embedding bag" }
func (EmbeddingBagBounds) opName() string  { return "embedding bag bounds" }
func (EmbeddingBagGrad) opName() string    { return "embedding bag grad" }
func (EmbeddingBagRows) opName() string    { return "embedding bag rows" }
func (EmbeddingBagWeights) opName() string { return "embedding bag weights" }
func (EmbeddingBagScales) opName() string  { return "embedding bag scales" }
func (Sort) opName() string                { return "sort" }
func (TopK) opName() string                { return "top k" }
func (CumSum) opName() string              { return "cumsum" }
func (CumProd) opName() string             { return "cumprod" }
func (FirstZeros) opName() string          { return "first zeros" }
func (ProdGrad) opName() string            { return "prod grad" }
func (SGD) opName() string                 { return "sgd" }
func (Adam) opName() string                { return "adam" }
func (Adagrad) opName() string             { return "adagrad" }
func (RMSprop) opName() string             { return "rmsprop" }
func (SGDRows) opName() string             { return "sgd rows" }
func (AdagradRows) opName() string         { return "adagrad rows" }
func (AdamRows) opName() string            { return "adam rows" }
func (LerpAll) opName() string             { return "lerp all" }
func (SwapAll) opName() string             { return "swap all" }
func (ClampAll) opName() string            { return "clamp all" }
func (ClipScale) opName() string           { return "clip scale" }

// Attention and positions.

// AttentionParams are what an attention and its gradient have in common. A query
// sees all keys; with Causal, query t sees those up to t + keyTime - time. Scale
// multiplies q·kᵀ; SoftCap c then takes x to c·tanh(x/c), 0 does not. Dropout is the share of the probabilities that become zero,
// by the counter-based generator of Key and its Stream, and by the place in the whole
// attention of which this is a Part.
type AttentionParams struct {
	Causal                  bool
	Scale, SoftCap, Dropout float32
	Key, Stream             uint64
	Part                    AttentionPart
}

// AttentionPart says of which attention another one is a part: how many heads,
// queries and keys the whole has (0 for as many as the part), and with which of them
// the part begins.
type AttentionPart struct {
	Heads, Time, KeyTime int
	Head, Query, Key     int
}

// Attention is softmax(q·kᵀ·scale + mask)·v. Arguments: w out like q, w lse
// [batch, heads, time], q [batch, time, heads, dim], k and v [batch, keyTime,
// keyHeads, dim], opt mask [batch, heads, time, keyTime]. out, q, k and v are low,
// and have any strides but for the last dim, which is dense; so has the mask.
type Attention struct{ AttentionParams }

// AttentionGrad is the gradient of [Attention]. Arguments: w dq, w dk, w dv, g and
// out as those of the forward call, lse, q, k, v, opt mask.
type AttentionGrad struct{ AttentionParams }

// AttentionDropout writes what an attention with dropout multiplies its
// probabilities by: w scales [batch, heads, time, keyTime].
type AttentionDropout struct{ AttentionParams }

// AttentionMerge makes two attentions of the same queries to different keys one. It
// writes to the first. Arguments: rw out [batch, time, heads, dim], rw lse [batch,
// heads, time], part low like out, partLSE like lse. They have any strides, but the
// last dims are dense.
type AttentionMerge struct{}

// CausalMask copies a matrix and sets the elements whose key lies after the query
// to Value. Arguments: w out, x, both [batch…, time, keyTime].
type CausalMask struct{ Value float64 }

// RoPE turns the channels i and i + dim/2 of each head by an angle, by minus the
// angle with Back. Arguments: w out and x [batch, time, heads, dim], whose last
// dim alone need be dense, cos and sin [time, dim/2] or [batch, time, dim/2].
type RoPE struct{ Back bool }

// Normalisation. gamma and beta scale and shift.

// LayerNorm normalises rows. Arguments: w out low [rows, cols], w mean and w rstd
// [rows], x like out, gamma and beta [cols].
type LayerNorm struct{ Eps float64 }

// LayerNormGrad is its gradient. Arguments: w dx low [rows, cols], w dgamma and w
// dbeta [cols], g and x like dx, mean and rstd [rows], gamma [cols].
type LayerNormGrad struct{}

// RMSNorm divides rows by their root mean square. Arguments: w out [rows, cols], w
// rstd [rows], x like out, opt weight [cols].
type RMSNorm struct{ Eps float64 }

// RMSNormGrad is its gradient. Arguments: w dx [rows, cols], w opt dweight [cols],
// g and x like dx, rstd [rows], opt weight [cols].
type RMSNormGrad struct{}

// GroupNorm normalises runs of channels. Arguments: w out low [batch, channels,
// plane], w mean and w rstd [batch, groups], x low like out, opt gamma and opt beta
// [channels].
type GroupNorm struct {
	NumGroups int
	Eps       float64
}

// GroupNormGrad is its gradient. Arguments: w dx low [batch, channels, plane], w
// opt dgamma and w opt dbeta [channels], g low and x low like dx, mean and rstd
// [batch, groups], opt gamma [channels].
type GroupNormGrad struct{ NumGroups int }

// RunningStats say how a training pass moves running statistics towards those of
// its batch: by Momentum, or, if Cumulative, to the average of all batches counted.
// With Update unset nothing moves.
type RunningStats struct {
	Update     bool
	Momentum   float64
	Cumulative bool
}

// BatchNorm normalises channels by the statistics of the batch. Arguments: w out
// low [batch, channels, plane], w mean and w rstd [channels], x low like out, opt
// gamma and opt beta [channels], opt residual low like out, which is added, rw opt
// running mean and rw opt running variance [channels], rw opt number of batches
// (int64, one element), which is counted up.
type BatchNorm struct {
	Running RunningStats
	Eps     float64
	ReLU    bool
}

// BatchNormApply normalises by given statistics. Arguments: w out, mean, rstd, x,
// opt gamma, opt beta, opt residual, as of [BatchNorm].
type BatchNormApply struct{ ReLU bool }

// BatchNormRunning writes the inverse deviation of a variance. Arguments: w rstd,
// variance, both [channels].
type BatchNormRunning struct{ Eps float64 }

// BatchNormMoments writes the sums of the elements of each channel, then those of
// their squares. Arguments: w sums float64 [2·channels + 1], of which the last is
// left alone, x low [batch, channels, plane].
type BatchNormMoments struct{}

// BatchNormStats turns sums over Count elements a channel into statistics.
// Arguments: w mean and w rstd [channels], sums float64 [2·channels + 1], rw opt
// running mean, rw opt running variance, rw opt number of batches, as of
// [BatchNorm].
type BatchNormStats struct {
	Running RunningStats
	Eps     float64
	Count   float64
}

// BatchNormGradParams are what the gradients of batch norm have in common.
// ByBatch says that the statistics were the batch's own.
type BatchNormGradParams struct{ ReLU, Residual, ByBatch bool }

// BatchNormGrad is the gradient of [BatchNorm]. Arguments: w dx low, w opt
// dresidual low, w opt dgamma and w opt dbeta [channels], g low, x low, opt y low
// (the result, where ReLU and a residual need it), mean and rstd [channels], opt
// gamma and opt beta [channels].
type BatchNormGrad struct{ BatchNormGradParams }

// BatchNormGradSums writes the sums that the gradient of x needs, to be added up
// over ranks. Arguments: those of [BatchNormGrad], then w sums float64
// [2·channels].
type BatchNormGradSums struct{ BatchNormGradParams }

// BatchNormGradApply finishes the gradient with sums over Count elements a
// channel. Arguments: those of [BatchNormGrad], then sums float64 [2·channels].
type BatchNormGradApply struct {
	BatchNormGradParams
	Count float64
}

// Convolution and pooling.

// Conv2dShape is the size of a convolution: images [Batch, In, Height, Width],
// weights [Out, In/Groups, KernelH, KernelW], results [Batch, Out, OutHeight,
// OutWidth].
type Conv2dShape struct {
	Batch, In, Height, Width int
	Out, KernelH, KernelW    int
	StrideH, StrideW         int
	PadH, PadW               int
	DilationH, DilationW     int
	Groups                   int
}

// OutHeight returns the rows of the result.
func (s Conv2dShape) OutHeight() int {
	return convSize(s.Height, s.KernelH, s.StrideH, s.PadH, s.DilationH)
}

// OutWidth returns the columns of the result.
func (s Conv2dShape) OutWidth() int {
	return convSize(s.Width, s.KernelW, s.StrideW, s.PadW, s.DilationW)
}

func convSize(size, kernel, stride, pad, dilation int) int {
	room := size + 2*pad - dilation*(kernel-1) - 1
	if room < 0 {
		return 0
	}
	return room/stride + 1
}

// ConvParams are what the convolutions have in common. With Low, operands are
// rounded to bfloat16 and sums are float32; each array is low then. Without it all
// are float32.
type ConvParams struct {
	Shape Conv2dShape
	Low   bool
}

// Conv2d is a convolution. Arguments: w y, x, weight, opt bias [Out] (float32).
type Conv2d struct{ ConvParams }

// Conv2dInputGrad is the gradient of the images, and a transposed convolution.
// Arguments: w dx, g, weight.
type Conv2dInputGrad struct{ ConvParams }

// Conv2dWeightGrad is the gradient of the weight, added to Beta (0 or 1) times what
// is there. Arguments: rw dw, g, x.
type Conv2dWeightGrad struct {
	ConvParams
	Beta float32
}

// Conv2dBiasGrad sums each channel, and adds what is there with Accumulate.
// Arguments: rw dst [channels], g low [batch, channels, plane…].
type Conv2dBiasGrad struct{ Accumulate bool }

// Windows are the runs of a dim of In elements that the Out elements of a pooled dim
// are made of. Adaptive ones cut the dim into runs of about one size: from
// ⌊o·In/Out⌋ to ⌈(o+1)·In/Out⌉. Others slide: Size elements, Dilation apart, each
// Stride on from the last, the first -Padding. CountPadding makes a mean count the
// padding as zeros.
type Windows struct {
	In, Out                         int
	Adaptive                        bool
	Size, Stride, Padding, Dilation int
	CountPadding                    bool
}

// MaxPool takes the largest element of each window. Arguments: w out low [planes,
// windows], w at int32 like out, where it was (-1 in the padding alone), x low
// [planes, H.In·W.In].
type MaxPool struct{ H, W Windows }

// MaxPoolGrad adds elements to where they came from. Arguments: w dx low [planes,
// n], g low [planes, windows], at int32 like g.
type MaxPoolGrad struct{}

// MaxPoolPick reads the elements at the places named. Arguments: w out low [planes,
// windows], x low [planes, n], at int32 like out.
type MaxPoolPick struct{}

// AvgPool takes the mean of each window, or its sum by Divisor if that is not 0.
// Arguments: w out low [planes, windows], x low [planes, H.In·W.In].
type AvgPool struct {
	H, W    Windows
	Divisor int
}

// AvgPoolGrad is its gradient. Arguments: w dx low [planes, H.In·W.In], g low
// [planes, windows].
type AvgPoolGrad struct {
	H, W    Windows
	Divisor int
}

// Probabilities and losses over classes.

// Softmax of rows. Arguments: w out, x, both [rows…, cols].
type Softmax struct{}

// SoftmaxGrad is its gradient. Arguments: w dx, out, g, all [rows…, cols].
type SoftmaxGrad struct{}

// LogSumExp of rows. Arguments: w out [rows], x [rows…, cols].
type LogSumExp struct{}

// ClassTargets prepares targets: those equal to Ignore become IgnoreAs, and others
// must be one of the Classes. It writes 1/n, n being the number of targets that
// count, for the mean. Arguments: w ids int64 [rows], targets int64 [rows], w scale
// (float64, one element).
type ClassTargets struct {
	Classes          int
	Ignore, IgnoreAs int64
	Check            *Check
}

// CrossEntropy writes the loss of each row and its log-sum-exp; a negative id has
// the loss 0. Arguments: w loss and w lse [rows], logits low [rows, classes], ids
// int64 [rows].
type CrossEntropy struct{}

// MaxAndSumExp writes the maximum of each row and the sum of exp(x - maximum); of a row of minus
// infinity the sum is 0. Arguments: w top and w sum [rows], x low [rows, cols].
type MaxAndSumExp struct{}

// CrossEntropyGrad is the gradient of [CrossEntropy]. A row with the id -100 gets zeros; another
// negative id is a class that is not among these. Arguments: w dx low [rows, classes],
// logits like dx, lse [rows], ids int64 [rows], g [rows].
type CrossEntropyGrad struct{}

// Probabilities checks that elements lie in [0, 1]; the value of a fault is the
// element as the bits of a float64. Argument: x.
type Probabilities struct{ Check *Check }

// Elementwise functions.

// SwiGLU is silu(gate)·up. Arguments: w out, gate, up, all low of one dtype.
type SwiGLU struct{}

// SwiGLUGrad is its gradient. Arguments: w dgate, w dup, gate, up, g, all low of one
// dtype.
type SwiGLUGrad struct{}

// PointwiseFunc names a function of [Pointwise].
type PointwiseFunc uint8

// The functions, with their parameters A and B.
const (
	LogSigmoid  PointwiseFunc = iota // log(1/(1+e⁻ˣ))
	LeakyReLU                        // x, below 0 A·x
	ELU                              // B·x, from 0 down A·B·(eˣ-1)
	Softplus                         // log(1+e^(A·x))/A, x where A·x > B
	Hardtanh                         // x limited to [A, B]
	Hardsigmoid                      // x/6 + 1/2 limited to [0, 1]
	Hardswish                        // x·Hardsigmoid(x)
	Mish                             // x·tanh(log(1+eˣ))
)

// Pointwise applies a function, or gives its slope, computed in float64. Arguments:
// w out, x, of one floating dtype.
type Pointwise struct {
	Func  PointwiseFunc
	Slope bool
	A, B  float64
}

// DropoutMask draws a bit an element that is set with probability Keep/2³², from
// the counter-based generator of Key and its Stream. Argument: w mask uint8
// [(NumElems+7)/8].
type DropoutMask struct {
	NumElems    int
	Key, Stream uint64
	Keep        uint32
}

// DropoutMaskRows draws the bits of rows of Length elements of a larger tensor. Row r
// begins with the tensor's element starts[r]. Arguments: w mask uint8
// [(rows·Length+7)/8], starts int64 [rows].
type DropoutMaskRows struct {
	Length      int
	Key, Stream uint64
	Keep        uint32
}

// Dropout multiplies by Scale where the bit of the mask is set, by 0 elsewhere.
// Arguments: w out, x, mask uint8.
type Dropout struct{ Scale float64 }

// Recurrent cells. Shapes are [batch, hidden] and, of the gates of a row, [batch,
// n·hidden].

// LSTMCell is a step. Arguments: w h, w c, rw gates [batch, 4·hidden] (sums, then
// gates), c before.
type LSTMCell struct{}

// LSTMCellGrad is its gradient. Arguments: w dgates [batch, 4·hidden], rw dc (of the
// state after, then of the one before), g of h from outside, dh from the next step,
// g of c from outside, gates, c, c before.
type LSTMCellGrad struct{}

// GRUCell is a step. Arguments: w h, w gates [batch, 4·hidden], x and sums [batch,
// 3·hidden], h before.
type GRUCell struct{}

// GRUCellGrad is its gradient. Arguments: w dx and w dsums [batch, 3·hidden], rw dh
// (of the state after, then of the one before), g of h from outside, gates, h
// before.
type GRUCellGrad struct{}

// Indices along a dim. Arrays are [outer…, dim, inner…], indices int64. They have
// been checked by [CheckIndices], which comes first; a device that runs these calls
// though it has noted a fault tests the bounds again.

// CheckIndices notes the first index that is not in [0, Limit). Argument: ids int64.
type CheckIndices struct {
	Limit int
	Check *Check
}

// IndexSelect copies slices. Arguments: w out [outer…, n, inner…], x of its dtype
// [outer…, size, inner…], ids [n].
type IndexSelect struct{ Dim int }

// IndexAdd adds slices, in the order of the ids. Arguments: rw dst [outer…, size,
// inner…] (float32, float64, int32 or int64), src of its dtype [outer…, n, inner…],
// ids [n].
type IndexAdd struct{ Dim int }

// GatherElems picks elements along a dim. Arguments: w out, x of its dtype, ids of
// the shape of out, which is that of x but for the dim.
type GatherElems struct{ Dim int }

// ScatterElems sets elements along a dim; of several at one place the last stays.
// Arguments: rw dst, src of its dtype, ids of the shape of src, which is that of dst
// but for the dim.
type ScatterElems struct{ Dim int }

// ScatterAddElems adds elements along a dim, in the order of src. Arguments as of
// [ScatterElems], the dtypes those of [IndexAdd].
type ScatterAddElems struct{ Dim int }

// Concat copies an operand into its place along a dim. Arguments: rw out, x of its
// dtype, whose elements go to Start and on.
type Concat struct{ Dim, Start int }

// Triangle keeps what is not above diagonal K of matrices, with Upper what is not
// below. Arguments: w out, x of its dtype, [batch…, rows, cols].
type Triangle struct {
	K     int
	Upper bool
}

// AddRegion adds g to the elements from Start on of one dim. Arguments: rw dst, g.
type AddRegion struct{ Dim, Start int }

// SumRows sums the rows of a matrix. Arguments: w out [cols], x bfloat16 [rows, cols].
type SumRows struct{}

// Embeddings whose gradients come by rows.

// GroupIDs sorts the positions of ids by id; positions of the id Skip are left out,
// none if it is negative. Arguments: w unique int64 [n], the ids that are there,
// increasing; w order int32 [n], the positions by id and then in their order; w
// starts int32 [n+1], where in order each id begins, and the end; w count int64, of
// unique; ids int64 [n].
type GroupIDs struct{ Skip int64 }

// SumSegments adds up the rows of g whose positions belong to one id, in their
// order. Arguments: w dst [count, width], g [n, width], unique int64 [count], order
// int32 [n], starts int32 [n+1], all by [GroupIDs].
type SumSegments struct{}

// BagMode is how a bag makes one row of several.
type BagMode uint8

// The modes.
const (
	BagMean BagMode = iota
	BagSum
	BagMax
)

// BagParams are what the operations on bags have in common: ids int64 [n], bounds
// int64 [bags+1] where bags begin and end, a Padding id that does not count, -1 for
// none.
type BagParams struct {
	Mode    BagMode
	Padding int64
}

// EmbeddingBag makes one row of the rows of each bag. Arguments: w out [bags, width],
// w owner int32 like out (for the maximum, absent otherwise), table [rows, width],
// ids, bounds, opt weights [n].
type EmbeddingBag struct{ BagParams }

// EmbeddingBagBounds writes where bags begin, and the end: of offsets that begin
// with 0, do not fall and do not exceed NumIDs, the last of which is NumIDs if
// WithLast. A fault has the position and value of the first that does not fit; the
// position behind the last one is for a last offset that is not NumIDs. Arguments: w
// bounds int64, offsets int64, which WithLast has as many elements, or one less.
type EmbeddingBagBounds struct {
	NumIDs   int
	WithLast bool
	Check    *Check
}

// EmbeddingBagGrad adds the gradient of the table. Arguments: rw dtable [rows,
// width], g [bags, width], ids, bounds, opt weights, opt owner.
type EmbeddingBagGrad struct{ BagParams }

// EmbeddingBagRows writes the gradient of the rows that were used. Arguments: w dst
// [count, width], g, ids, bounds, opt weights, opt owner, unique, order, starts; the last
// three as of [SumSegments].
type EmbeddingBagRows struct{ BagParams }

// EmbeddingBagWeights is the gradient of the weights of sums. Arguments: w dweights
// [n], table, g, ids, bounds.
type EmbeddingBagWeights struct{ BagParams }

// EmbeddingBagScales writes which bag a position is in, and how much it counts there.
// Arguments: w bags int64 [n], w scales float32 [n], ids, bounds.
type EmbeddingBagScales struct{ BagParams }

// Rows in groups, such as the tokens of experts: those of group 0 come first, then
// those of group 1, and those that no group has are last. counts int64 [groups] says how
// many rows a group has. A kernel takes no more of them than there are.

// GroupRows finds the place of each row in the order of its group; a row of the group -1
// has the place -1. A fault has the position and value of another group that is not in
// [0, NumGroups). Arguments: w places int64 [n…], w counts, groups int64 [n…].
type GroupRows struct {
	NumGroups int
	Check     *Check
}

// LimitGroups lets no group have more than Limit rows: others get the group -1. What
// stands in the first column comes before what is in the next, and earlier rows before
// later ones. Arguments: w out and groups int64 [n, k].
type LimitGroups struct{ NumGroups, Limit int }

// SpreadRows copies rows of x to their places, each times its scale. The other rows of
// out become 0. No place is there twice but -1, which is none. Arguments: w out low
// [rows, width], x like out [n, width], places int64 [n, k], opt scales [n, k].
type SpreadRows struct{}

// CombineRows adds up the rows of y at the places of each row of out, each times its
// scale. Arguments: w out low [n, width], y like out [rows, width], places int64 [n, k],
// opt scales [n, k].
type CombineRows struct{}

// CombineWeights is the gradient of the scales. Arguments: w dscales [n, k], g low
// [n, width], y like g [rows, width], places int64 [n, k].
type CombineWeights struct{}

// GroupedProduct multiplies the rows of each group by the matrix of the group, and adds
// its bias; rows that no group has become 0. As in MatMul each of out, x and weight is
// low, and if one is bfloat16 the others are rounded to it. A fault has the position and
// value of a count that does not fit. Arguments: w out [rows, n], x [rows, k], weight
// [groups, k, n], whose matrices may be transposed, opt bias [groups, n], counts.
type GroupedProduct struct{ Check *Check }

// GroupedWeightGrad computes aᵀ·b of the rows of each group, and adds Beta (0 or 1) times
// what is there. Arguments: rw out [groups, m, n], a [rows, m], b [rows, n], counts. out, a
// and b are low as in [GroupedProduct].
type GroupedWeightGrad struct{ Beta float32 }

// GroupSums adds up the rows of each group. Arguments: w out [groups, n], x low [rows,
// n], counts.
type GroupSums struct{}

// Order and running sums.

// Sort writes the indices that sort rows; equal elements stay in order, NaN is the
// largest. Arguments: w order int64 [rows…, n], x of any dtype like order.
type Sort struct{ Descending bool }

// TopK writes the indices of the K best elements of rows. Arguments: w order int64
// [rows…, K], x of any dtype [rows…, n].
type TopK struct {
	K       int
	Largest bool
}

// CumSum writes running sums along a dim, from the end on with Reverse; floating
// numbers are added in float64. Arguments: w out, x of its dtype (float32, float64 or
// int64).
type CumSum struct {
	Dim     int
	Reverse bool
}

// CumProd writes the running products of rows. Arguments: w out, x, both [rows…, n].
type CumProd struct{}

// FirstZeros writes 1 at the first 0 of each row, and 1 at what comes before it.
// Arguments: w first, w before, x, all [rows…, n].
type FirstZeros struct{}

// ProdGrad writes the product of the other elements of each run of Size. Arguments: w
// out, x, both float64.
type ProdGrad struct{ Size int }

// Optimizers. Each has a list of updates and the arguments of one after another.
// The last argument, opt scale (float64, one element), multiplies the gradients; if it
// is not finite, nothing is written. Maximize turns the gradient round.

// SGD does a step of stochastic gradient descent. Arguments of an update: rw param, g,
// rw opt momentum buffer.
type SGD struct{ Updates []SGDUpdate }

// SGDUpdate has the numbers of an update. First says that the momentum buffer holds
// nothing yet.
type SGDUpdate struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, First, Maximize            bool
}

// Adam does a step of Adam or AdamW. Arguments of an update: rw param, g, rw first
// moment, rw second moment, rw opt greatest second moment.
type Adam struct{ Updates []AdamUpdate }

// AdamUpdate has the numbers of an update; Bias1 and Bias2 are 1-βᵗ. Decoupled weight
// decay makes it AdamW.
type AdamUpdate struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Bias1, Bias2                       float64
	Decoupled, Maximize                bool
}

// Adagrad does a step. Arguments of an update: rw param, g, rw sum of squares.
type Adagrad struct{ Updates []AdagradUpdate }

// AdagradUpdate has the numbers of an update.
type AdagradUpdate struct {
	LR, WeightDecay, Eps float64
	Maximize             bool
}

// RMSprop does a step. Arguments of an update: rw param, g, rw mean of squares, rw opt
// mean, rw opt momentum buffer.
type RMSprop struct{ Updates []RMSpropUpdate }

// RMSpropUpdate has the numbers of an update.
type RMSpropUpdate struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool
}

// Steps for gradients by rows: rows [n, width] belong to the rows ids int64 [n],
// increasing and below the table's number of rows. A fault has the position and value
// of an id that is not.

// SGDRows is a step of SGD without weight decay; with momentum all rows move.
// Arguments: rw param [rows, width], rw opt momentum buffer, g rows, ids, opt scale.
type SGDRows struct {
	SGDUpdate
	Check *Check
}

// AdagradRows is a step of Adagrad of the rows alone. Arguments: rw param, rw sum, g
// rows, ids, opt scale.
type AdagradRows struct {
	AdagradUpdate
	Check *Check
}

// AdamRows is a step of PyTorch's SparseAdam. Arguments: rw param, rw first moment, rw
// second moment, g rows, ids, opt scale.
type AdamRows struct {
	AdamUpdate
	Check *Check
}

// LerpAll moves arrays towards others by Weight. Arguments: rw dst, src; the next pair.
type LerpAll struct{ Weight float64 }

// SwapAll exchanges arrays. Arguments: rw a, rw b; the next pair.
type SwapAll struct{}

// ClampAll bounds arrays by -Limit and Limit. Arguments: rw x, one after another.
type ClampAll struct{ Limit float64 }

// ClipScale writes min(1, MaxNorm/(norm+1e-6)) + 0·norm: the scale of a step that
// clips gradients, NaN if the norm is not finite. Arguments: w scale, norm, both
// float64 of one element.
type ClipScale struct{ MaxNorm float64 }
