// Pushes nodes onto linked stacks by compare-and-swap, with a bound on the number of attempts.
extern "C" __global__ void lock_free_stack(int *heads, int *next, int *failed, int stacks, int n) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= n) return;
    int *head = &heads[node % stacks];
    for (int attempt = 0; attempt < 10000; attempt++) {
        int top = *(volatile int *)head;
        next[node] = top;
        __threadfence();
        if (atomicCAS(head, top, node) == top) return;
    }
    atomicAdd(failed, 1);
}
