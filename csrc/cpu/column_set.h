// A set of columns with one bit for each, which also tells where a column stands among the others in ascending order:
// entries are put in order by it without being sorted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flyk {
namespace FLYK_ISA {

class ColumnSet {
 public:
  explicit ColumnSet(int64_t columns) : bits_(columns / 64 + 1), below_(bits_.size()) {}

  void clear() { std::fill(bits_.begin(), bits_.end(), 0); }
  bool has(int64_t c) const { return bits_[c / 64] >> (c % 64) & 1; }
  void add(int64_t c) { bits_[c / 64] |= uint64_t{1} << (c % 64); }

  // To be called between the last add and the first rank.
  void count() {
    int32_t sum = 0;
    for (size_t w = 0; w < bits_.size(); ++w) {
      below_[w] = sum;
      sum += __builtin_popcountll(bits_[w]);
    }
  }
  // How many columns of the set are smaller than c.
  int64_t rank(int64_t c) const {
    return below_[c / 64] + __builtin_popcountll(bits_[c / 64] & ((uint64_t{1} << (c % 64)) - 1));
  }

 private:
  std::vector<uint64_t> bits_;
  std::vector<int32_t> below_;
};

}  // namespace FLYK_ISA
}  // namespace flyk
