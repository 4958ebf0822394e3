// Uses the installed headers and library the way a user would: asks for a plan and prints it.
#include <quaver/attention.h>

#include <iostream>

int main() {
  quaver::AttentionProblem problem;
  problem.arch = 90;
  problem.num_q_heads = 32;
  problem.kv = {.num_kv_heads = 16, .head_dim_k = 256, .head_dim_v = 256};
  const auto decision = quaver::plan_attention(problem);
  if (const auto* refused = std::get_if<quaver::Unsupported>(&decision)) {
    std::cerr << refused->reason << '\n';
    return 1;
  }
  std::cout << quaver::to_string(std::get<quaver::AttentionPlan>(decision)) << '\n';
}
