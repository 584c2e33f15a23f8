// Sums of weights by class with float atomics; the weights are small whole numbers, so every order gives one sum.
extern "C" __global__ void weighted(const int *classes, const float *weights, float *sums, int classes_max, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)classes[i] < (unsigned)classes_max) atomicAdd(sums + classes[i], weights[i]);
}
