// What csrc offers: one function per operator, on raw pointers, free of torch and of Python.
//
// The sources under cpu/ are compiled once per instruction set, each into its own namespace FLYK_ISA with its own
// Kernels table (table.cpp); kernels() picks one when the library is loaded (isa.cpp). All matrices are row-major and
// contiguous. The caller has checked shapes; what only the data can tell (an index out of range) the caller checks too.
#pragma once

#include <cstdint>
#include <vector>

namespace flyk {

enum class DType : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };
enum class Selection : int { magnitude = 0, signed_ = 1, biased_magnitude = 2 };
enum class Activation : int { none = 0, relu = 1 };
enum class Kind : int { gaussian = 0, sparse_gaussian = 1, sparse_sign = 2, binary = 3 };

// A frozen matrix (rows, in): dense values (rows, in) with indices null, or nnz entries in each row.
struct Frozen {
  const void* values;
  const int32_t* indices;  // (rows, nnz) or null
  int64_t rows, in, nnz;
};

struct WinnerTakeAll {
  const void* y;  // (rows, n)
  DType dtype;
  int64_t rows, n, k;
  const float* bias;  // (n,) or null; for f64 a const double*
  Selection selection;
  void* winners;     // (rows, k), y's dtype
  int64_t* indices;  // (rows, k)
};

// Sparse rows only: dense rows are a GEMM, which torch has.
struct Project {
  const void* x;  // (rows, in)
  DType dtype;
  int64_t rows;
  Frozen matrix;
  Activation activation;
  void* y;  // (rows, matrix.rows)
};

struct ProjectTopk {
  Project project;  // y unused
  int64_t k;
  const float* bias;
  Selection selection;
  void* winners;     // (rows, k)
  int64_t* indices;  // (rows, k)
};

struct FlyLora {
  const void* x;  // (rows, in)
  DType dtype;
  int64_t rows, out, k;
  Frozen matrix;     // r rows
  const void* base;  // (rows, out) or null; may be y itself
  const void* b;     // (out, r)
  const float* bias; // (r,) or null
  double scale;
  Selection selection;
  void* y;           // (rows, out)
  void* winners;     // (rows, k)
  int64_t* indices;  // (rows, k)
};

struct FlyLoraBackward {
  const void* grad;  // (rows, out)
  DType dtype;
  int64_t rows, out, k;
  const void* winners;     // (rows, k)
  const int64_t* indices;  // (rows, k)
  Frozen matrix;
  const void* b;  // (out, r)
  double scale;
  void* grad_x;  // (rows, in) or null
  void* grad_b;  // (out, r) or null
};

// The k-winner Gram: row n of phi holds winners at distinct columns; G (m, m) lower triangle += phi^T phi, and what is
// above it may change; q (m, classes) += rows of phi summed by label.
struct WinnerGram {
  const float* winners;    // (rows, k)
  const int64_t* indices;  // (rows, k)
  const int64_t* labels;   // (rows,)
  int64_t rows, k, m, classes;
  float* g;
  float* q;
  bool scatter;  // for few winners; else by panels, see winner_gram.cpp
};

struct Ensemble {
  const void* h;  // (rows, in)
  DType dtype;
  int64_t rows, in, classes, experts, heads;
  const void* online_weight;  // (classes, in)
  const void* online_bias;    // (classes,) or null
  const void* bank_weight;    // (experts, heads, classes, in), strides of the first three in entries:
  int64_t expert_stride, head_stride, class_stride;
  const void* bank_bias;      // (experts, heads, classes) or null
  const int64_t* expert_ids;  // (rows,)
  const bool* seen;           // (classes,) or null
  void* p;                    // (rows, classes)
};

struct Ema {
  void* bank;  // (heads, entries)
  DType dtype;
  int64_t heads, entries;
  const void* online;    // (entries,)
  const double* decays;  // (heads,)
};

// The forward, or the backward; both look only at the classes that are some row's target.
struct MaskedCrossEntropy {
  const void* logits;  // (rows, classes)
  DType dtype;
  int64_t rows, classes;
  const int64_t* target;  // (rows,)
  double scale;           // of the gradient: the loss's own, over the rows; unused by the forward
  void* result;           // the loss; or the gradient (rows, classes)
};

// Rows first .. first + rows of a frozen projection; see philox.h.
struct MakeProjection {
  Kind kind;
  int64_t in, nnz;
  float std;
  uint64_t seed;
  int64_t first, rows;
  float* values;     // (rows, nnz), nnz = in for gaussian
  int32_t* indices;  // (rows, nnz), null for gaussian
};

// One side of a product: (rows, depth) of f32 or bf16; one of the strides is 1.
struct Operand {
  const void* values;
  DType dtype;
  int64_t rows, row_stride, depth_stride;
};

// out = left right^T or out += left right^T in float32 sums; out (left.rows, right.rows).
struct Product {
  Operand left, right;
  int64_t depth;
  int terms;   // 1: rounded to bfloat16; 3 or 4: split into high and low, without low times low or with it
  bool add;
  bool lower;  // only what is on and below the diagonal is meant
  float* out;
};

// The kernels that every build has, each with what it is given: from this list come the table below, the declarations
// (cpu/operators.h) and what a build puts into its table (cpu/table.cpp).
#define FLYK_KERNELS(X)                                \
  X(make_projection, MakeProjection)                   \
  X(winner_take_all, WinnerTakeAll)                    \
  X(project, Project)                                  \
  X(project_topk, ProjectTopk)                         \
  X(fly_lora, FlyLora)                                 \
  X(fly_lora_backward, FlyLoraBackward)                \
  X(winner_gram, WinnerGram)                           \
  X(ensemble, Ensemble)                                \
  X(ema_, Ema)                                         \
  X(masked_cross_entropy, MaskedCrossEntropy)          \
  X(masked_cross_entropy_backward, MaskedCrossEntropy)

struct Kernels {
  const char* isa;
#define FLYK_FIELD(name, Arguments) void (*name)(const Arguments&);
  FLYK_KERNELS(FLYK_FIELD)
#undef FLYK_FIELD
  void (*product)(const Product&);  // null but in "amx": elsewhere products are the matrix library's
};

const Kernels& kernels();

// The builds whose instruction set the processor and its system support, the widest first; and their names.
std::vector<const Kernels*> tables();
std::vector<const char*> instruction_sets();

}  // namespace flyk
