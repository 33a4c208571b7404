// The Python face of csrc: addresses and sizes in, nothing out. Callers (flyk/backends/cpu) have checked them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#define FLYK_ISA baseline  // any build's Philox will do: make_projection holds them to one another
#include "cpu/philox.h"
#include "kernels.h"
#include "parallel.h"

namespace py = pybind11;
using namespace flyk;
using Address = std::uintptr_t;

namespace {

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Frozen frozen(Address values, Address indices, int64_t rows, int64_t in, int64_t nnz) {
  return {at<void>(values), at<int32_t>(indices), rows, in, nnz};
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "flyk's kernels for the CPU.";
  m.def("isa", [] { return kernels().isa; }, "Name of the build of the kernels that serves this process.");
  m.def("instruction_sets", &instruction_sets, "The builds that this processor can run, the widest first.");
  m.def("use_pool", [](Address entry) { Pool::entry() = reinterpret_cast<TeamEntry>(entry); }, py::arg("entry"),
        "Address of GOMP_parallel in the OpenMP runtime that this process already runs, or 0 for none.");
  m.def("set_threads", [](int threads) { Pool::threads() = threads; }, py::arg("threads"));

  m.def(
      "philox",
      [](uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
        baseline::philox(c0, c1, c2, c3, k0, k1);
        return py::make_tuple(c0, c1, c2, c3);
      },
      "Philox-4x32-10 of four counter words and two key words, for its known-answer test.");

  const auto free_gil = py::call_guard<py::gil_scoped_release>();
  m.def("make_projection",
        [](int kind, int64_t in, int64_t nnz, float std, uint64_t seed, int64_t first, int64_t rows, Address values,
           Address indices) {
          kernels().make_projection({static_cast<Kind>(kind), in, nnz, std, seed, first, rows, at<float>(values),
                                     at<int32_t>(indices)});
        },
        free_gil);
  m.def("winner_take_all",
        [](Address y, int dtype, int64_t rows, int64_t n, int64_t k, Address bias, int selection, Address winners,
           Address indices) {
          kernels().winner_take_all({at<void>(y), static_cast<DType>(dtype), rows, n, k, at<float>(bias),
                                     static_cast<Selection>(selection), at<void>(winners), at<int64_t>(indices)});
        },
        free_gil);
  m.def("project",
        [](Address x, int dtype, int64_t rows, Address values, Address indices, int64_t m, int64_t in, int64_t nnz,
           int activation, Address y) {
          kernels().project({at<void>(x), static_cast<DType>(dtype), rows, frozen(values, indices, m, in, nnz),
                             static_cast<Activation>(activation), at<void>(y)});
        },
        free_gil);
  m.def("project_topk",
        [](Address x, int dtype, int64_t rows, Address values, Address indices, int64_t m, int64_t in, int64_t nnz,
           int activation, int64_t k, Address bias, int selection, Address winners, Address winner_indices) {
          kernels().project_topk({{at<void>(x), static_cast<DType>(dtype), rows, frozen(values, indices, m, in, nnz),
                                   static_cast<Activation>(activation), nullptr},
                                  k, at<float>(bias), static_cast<Selection>(selection), at<void>(winners),
                                  at<int64_t>(winner_indices)});
        },
        free_gil);
  m.def("fly_lora",
        [](Address x, int dtype, int64_t rows, int64_t out, int64_t k, Address values, Address indices, int64_t r,
           int64_t in, int64_t nnz, Address base, Address b, Address bias, double scale, int selection, Address y,
           Address winners, Address winner_indices) {
          kernels().fly_lora({at<void>(x), static_cast<DType>(dtype), rows, out, k,
                              frozen(values, indices, r, in, nnz), at<void>(base), at<void>(b), at<float>(bias), scale,
                              static_cast<Selection>(selection), at<void>(y), at<void>(winners),
                              at<int64_t>(winner_indices)});
        },
        free_gil);
  m.def("fly_lora_backward",
        [](Address grad, int dtype, int64_t rows, int64_t out, int64_t k, Address winners, Address winner_indices,
           Address values, Address indices, int64_t r, int64_t in, int64_t nnz, Address b, double scale, Address grad_x,
           Address grad_b) {
          kernels().fly_lora_backward({at<void>(grad), static_cast<DType>(dtype), rows, out, k, at<void>(winners),
                                       at<int64_t>(winner_indices), frozen(values, indices, r, in, nnz), at<void>(b),
                                       scale, at<void>(grad_x), at<void>(grad_b)});
        },
        free_gil);
  m.def("winner_gram",
        [](Address winners, Address indices, Address labels, int64_t rows, int64_t k, int64_t m, int64_t classes,
           Address g, Address q, bool scatter) {
          kernels().winner_gram({at<float>(winners), at<int64_t>(indices), at<int64_t>(labels), rows, k, m, classes,
                                 at<float>(g), at<float>(q), scatter});
        },
        free_gil);
  m.def("ensemble",
        [](Address h, int dtype, int64_t rows, int64_t in, int64_t classes, int64_t experts, int64_t heads,
           Address online_weight, Address online_bias, Address bank_weight, int64_t expert_stride, int64_t head_stride,
           int64_t class_stride, Address bank_bias, Address expert_ids, Address seen, Address p) {
          kernels().ensemble({at<void>(h), static_cast<DType>(dtype), rows, in, classes, experts, heads,
                              at<void>(online_weight), at<void>(online_bias), at<void>(bank_weight), expert_stride,
                              head_stride, class_stride, at<void>(bank_bias), at<int64_t>(expert_ids), at<bool>(seen),
                              at<void>(p)});
        },
        free_gil);
  m.def("ema_",
        [](Address bank, int dtype, int64_t heads, int64_t entries, Address online, const std::vector<double>& decays) {
          kernels().ema_({at<void>(bank), static_cast<DType>(dtype), heads, entries, at<void>(online), decays.data()});
        },
        free_gil);
  m.def("masked_cross_entropy",
        [](Address logits, int dtype, int64_t rows, int64_t classes, Address target, Address loss) {
          kernels().masked_cross_entropy({at<void>(logits), static_cast<DType>(dtype), rows, classes,
                                          at<int64_t>(target), 0, at<void>(loss)});
        },
        free_gil);
  m.def("masked_cross_entropy_backward",
        [](Address logits, int dtype, int64_t rows, int64_t classes, Address target, double scale, Address grad) {
          kernels().masked_cross_entropy_backward({at<void>(logits), static_cast<DType>(dtype), rows, classes,
                                                   at<int64_t>(target), scale, at<void>(grad)});
        },
        free_gil);
  m.def("product",
        [](Address left, int left_dtype, int64_t rows, int64_t left_row, int64_t left_depth, Address right,
           int right_dtype, int64_t columns, int64_t right_row, int64_t right_depth, int64_t depth, int terms, bool add,
           bool lower, Address out) {
          kernels().product({{at<void>(left), static_cast<DType>(left_dtype), rows, left_row, left_depth},
                             {at<void>(right), static_cast<DType>(right_dtype), columns, right_row, right_depth},
                             depth, terms, add, lower, at<float>(out)});
        },
        free_gil);
}
